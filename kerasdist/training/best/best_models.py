"""`keep_best`: the models of the best epochs, in a run's folder `best/`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from kerasdist.engine.engine import Engine
from kerasdist.runs import metrics_log
from kerasdist.runs.file_names import BEST, BEST_MODELS
from kerasdist.runs.folder import RunFolder
from kerasdist.runs.results import direction, kept_models
from kerasdist.runs.results.kept_models import KeptModel

# Writes, and returns the error if that failed.
Attempt = Callable[[str, Callable[[], Any]], Exception | None]


class BestModels:
    """Keeps the models of the `count` best epochs. With 1, best.keras is all there is.

    A model is written before the index. What better models pushed out is deleted only when
    `saved_step()`, the step of the newest checkpoint, has come as far: a run that is killed and
    resumes before repeats those epochs, and may need it.
    """

    def __init__(
        self, folder: RunFolder, count: int, attempt: Attempt, saved_step: Callable[[], int]
    ):
        self._folder, self._count = folder, count
        self._attempt, self._saved_step = attempt, saved_step
        self._models = kept_models.read(folder.path) if count > 1 else []
        self._monitor: str | None = None
        self._known = direction.of_run(folder.path)

    def rewind(self, epoch: int, monitor: str | None) -> None:
        """Forgets the epochs after `epoch`, which will be trained again."""
        if self._count < 2:
            return
        self._models = [replace(m, left_at=None) for m in self._models if m.epoch <= epoch]
        found = metrics_log.best_epoch(self._folder.path, monitor)
        if found is None:
            return
        name, best = found
        if not self._models and (self._folder.path / BEST).is_file():
            self._link(BEST, KeptModel(best.epoch, best.value))  # It kept only one model so far.
        if self._models:
            file = kept_models.ranked(self._models, name, self._known)[0].file
            self._attempt(BEST, lambda: self._folder.link(file, BEST))

    def keep(
        self, engine: Engine, name: str, value: float, *, epoch: int, step: int, is_best: bool
    ) -> None:
        """Keeps the model of this epoch if it is among the best.

        Args:
            engine: What holds the model.
            name: The monitored metric.
            value: Its value after this epoch.
            epoch: The number of the epoch, counted from 1.
            step: The number of steps so far.
            is_best: Whether best.keras has just been written with this model.
        """
        if self._count < 2:
            return
        self._monitor = name
        self._models = [model for model in self._models if model.epoch != epoch]
        new = KeptModel(epoch, value)
        if kept_models.is_comparable(value) and self._is_wanted(new, name):
            if is_best:
                self._link(BEST, new)
            else:
                self._write(engine, new)
        self._rank(name, step)
        self.clean()

    def clean(self) -> None:
        """Writes the index, and deletes the files that no checkpoint needs."""
        if self._monitor is None:
            return
        saved, path, monitor = self._saved_step(), self._folder.path, self._monitor
        self._models = [m for m in self._models if m.left_at is None or m.left_at > saved]

        def write_index() -> None:
            kept_models.write(path, monitor, self._models)

        if not self._models or self._attempt(BEST_MODELS, write_index) is not None:
            return
        known = {model.file for model in self._models}
        for file in (path / BEST_MODELS).glob("epoch-*.keras"):
            if f"{BEST_MODELS}/{file.name}" not in known:
                with contextlib.suppress(OSError):
                    file.unlink()

    def _is_wanted(self, new: KeptModel, name: str) -> bool:
        models = kept_models.ranked([*self._models, new], name, self._known)
        return new in models[: self._count]

    def _rank(self, name: str, step: int) -> None:
        """Notes which models are among the best, and since when the others are not."""
        models = kept_models.ranked(self._models, name, self._known)
        best = [replace(model, left_at=None) for model in models[: self._count]]
        rest = [m if m.left_at is not None else replace(m, left_at=step) for m in models]
        self._models = best + rest[self._count :]

    def _link(self, source: str, new: KeptModel) -> None:
        if self._attempt(new.file, lambda: self._folder.link(source, new.file)) is None:
            self._models.append(new)

    def _write(self, engine: Engine, new: KeptModel) -> None:
        engine.state.write_back("trainable", "other", "optimizer")
        weights = engine.ema_weights() if engine.settings.ema else None
        error = self._attempt(new.file, lambda: self._folder.save(new.file, engine.model, weights))
        if error is None:
            self._models.append(new)
