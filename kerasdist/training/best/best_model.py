"""best.keras: the model with the best monitored value so far."""

from __future__ import annotations

import operator
from typing import Any

from kerasdist.engine.engine import Engine
from kerasdist.errors import KerasdistError, closest
from kerasdist.runs.file_names import BEST
from kerasdist.runs.folder import RunFolder
from kerasdist.runs.metrics_log import monitored
from kerasdist.runs.results import kept_models
from kerasdist.runs.results.direction import is_higher_better, of_run
from kerasdist.training.best.best_models import Attempt, BestModels


class BestModel:
    """Keeps best.keras in a run's folder.

    `attempt(what, write)` writes and returns the error if that failed. Then the weights are kept
    in memory until they can be written. `value` is the best value so far, `written` the value of
    the file. `others` keeps the next best models, too.
    """

    def __init__(
        self,
        folder: RunFolder,
        monitor: str | None,
        attempt: Attempt,
        others: BestModels,
    ):
        self._folder, self._monitor, self._attempt = folder, monitor, attempt
        self._others = others
        self._known = of_run(folder.path)
        self._unwritten: list[Any] | None = None
        self.value: float | None = None
        self.written: float | None = None

    def rewind(self, epoch: int) -> None:
        """Forgets the epochs after `epoch`, which will be trained again."""
        self._others.rewind(epoch, self._monitor)

    def keep(self, engine: Engine, logs: dict[str, Any], *, epoch: int, step: int) -> None:
        """Writes the file if the monitored value of this epoch is the best so far.

        The epoch is counted from 1.
        """
        name = monitored(logs, self._monitor)
        value = logs.get(name)
        if self._monitor is None and name not in logs:
            return  # A step of the model's own may not return a loss.
        if not isinstance(value, float):
            known = [key for key, logged in logs.items() if isinstance(logged, float)]
            raise KerasdistError(
                f"Received `monitor={name!r}`. Expected one of {', '.join(known)}."
                f"{closest(name, known)} Correct the name."
            )
        if self._unwritten is None and not (self._folder.path / BEST).exists():
            self.value = None  # The folder was lost: the best since then is better than none.
        is_better = operator.gt if is_higher_better(name, self._known) else operator.lt
        is_best = self.value is None or is_better(value, self.value)
        is_best = is_best and kept_models.is_comparable(value)
        if is_best:
            self.value = value
            engine.state.write_back("trainable", "other", "optimizer")
            weights = engine.ema_weights() if engine.settings.ema else None
            is_best = self._write(engine, weights) is None
        else:
            self.write_missing(engine)
        self._others.keep(engine, name, value, epoch=epoch, step=step, is_best=is_best)

    def saved(self) -> None:
        """After the last checkpoint: deletes what no run needs any more."""
        self._others.clean()

    def _write(self, engine: Engine, weights: list[Any] | None) -> Exception | None:
        """Writes the model with `weights`, or with its current weights if there are none."""
        folder, model = self._folder, engine.model
        error = self._attempt(BEST, lambda: folder.save(BEST, model, weights))
        if error is None:
            self._unwritten, self.written = None, self.value
        else:
            self._unwritten = weights or model.get_weights()
        return error

    def write_missing(self, engine: Engine) -> Exception | None:
        """Writes the best weights again if an earlier attempt failed."""
        return None if self._unwritten is None else self._write(engine, self._unwritten)
