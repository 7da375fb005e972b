"""Writes the folder of one run: configuration, metrics, the trained model and the result."""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kerasdist.errors import KerasdistError, RunFailedError, first_line
from kerasdist.runs import metrics_log, ownership
from kerasdist.runs.atomic import write_json
from kerasdist.runs.catalog import CODE, is_run, next_run_folder, read_config, read_object
from kerasdist.runs.file_names import (
    CHECKPOINTS,
    CONFIG,
    DESCRIPTION,
    ENVIRONMENT,
    FINAL,
    LOCK,
    MODEL,
    NAN_NOTE,
    RESULT,
)
from kerasdist.runs.trained_model import WEIGHTS_DRAFT, save_model, weights_sha256

if TYPE_CHECKING:  # The command line checks a run's folder before it loads Keras.
    import keras
    import numpy as np

# What may change from one start of a run to the next, and says where it ends.
_LENGTHS = ("epochs", "steps")
# A run that has not trained a step holds nothing else.
_BEFORE_TRAINING = {*DESCRIPTION, LOCK, CHECKPOINTS}


class RunFolder:
    """Writes the files of one run. Refuses a folder that holds something else.

    Args:
        path: The run's folder. It must be new or empty, or with `resume` a run.
        config: What config.json of a new run will say.
        dataset: Where the data comes from, for result.json.
        resume: Whether a run in this folder may be continued.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        config: Mapping[str, Any],
        dataset: str = "caller",
        *,
        resume: bool = False,
    ):
        self.path = Path(path).expanduser()
        self.dataset = dataset
        # How many steps were trained, as far as the training has said it.
        self.steps: int | None = None
        self._made: list[Path] = []
        self._is_new = False
        self._config = config
        check_usable(path, resume=resume)
        if resume and is_run(self.path):
            # Keep its configuration. The checkpoints know which settings must be the same.
            # `rewind` notes how long it trains now.
            return
        self._is_new = True
        # `discard` removes the folders that were made here.
        self._made = [p for p in (self.path, *self.path.parents) if not p.exists()]
        with _writing(path):
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / CONFIG, dict(config))

    @classmethod
    def numbered(
        cls, parent: str | os.PathLike[str], config: Mapping[str, Any], dataset: str = "caller"
    ) -> RunFolder:
        """A new run in `parent/0001` or the next number, also if several runs start at once."""
        while True:
            path = next_run_folder(parent)
            with _writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                try:
                    path.mkdir()
                except FileExistsError:
                    continue
            folder = cls(path, config, dataset)
            folder._made = [path]
            return folder

    @property
    def is_new(self) -> bool:
        """Whether the folder was made now, for a run that begins."""
        return self._is_new

    def discard(self) -> None:
        """Removes the folder of a run that did not start, so that the next command can use it."""
        with contextlib.suppress(OSError):
            if self._is_new and {p.name for p in self.path.iterdir()} <= _BEFORE_TRAINING:
                for name in (*DESCRIPTION, LOCK):
                    (self.path / name).unlink(missing_ok=True)
                if (self.path / CHECKPOINTS).is_dir():
                    (self.path / CHECKPOINTS).rmdir()
                for path in self._made:
                    path.rmdir()

    def describe(self, model: Mapping[str, Any], environment: Mapping[str, Any]) -> None:
        """Writes model.json if it is missing, and adds this start to environment.json."""
        with _writing(self.path):
            if not (self.path / MODEL).exists():
                write_json(self.path / MODEL, model)
            earlier = _starts(self.path / ENVIRONMENT)
            # So that a run on synthetic data can be told from others while it trains.
            start = {**environment, "dataset": self.dataset, "earlier": earlier}
            write_json(self.path / ENVIRONMENT, start)

    def log(self, **fields: Any) -> None:
        """Appends one object to metrics.jsonl: the whole line, or nothing."""
        ownership.ensure(self.path)
        metrics_log.append(self.path, fields)

    def rewind(self, step: int, epoch: int, *, is_done: bool = False) -> None:
        """Removes from metrics.jsonl what a resumed run will log again. Notes its new length.

        Unless the run `is_done`, how it ended before is forgotten: if it is killed now, it is
        unfinished, and the same command continues it.
        """
        if not is_done:
            # Before the length: with a result, a config.json that asks for no more is finished.
            self._forget_result()
        self._note_start(is_done=is_done)
        metrics_log.rewind(self.path, step, epoch)

    def _forget_result(self) -> None:
        if (self.path / RESULT).exists():
            ownership.ensure(self.path)
            with _writing(self.path):
                (self.path / RESULT).unlink(missing_ok=True)

    def _note_start(self, *, is_done: bool) -> None:
        """Changes the epochs and steps in config.json, so that the run is continued to this end.

        If the run is trained further, the hash of its code is that of the code now.
        """
        saved = read_config(self.path)
        if self._is_new or saved is None:
            return
        new = copy.deepcopy(saved)
        for group in ("settings", "options"):
            given = self._config.get(group) or {}
            lengths = {name: given[name] for name in _LENGTHS if name in given}
            if group in new:
                new[group].update(lengths)
        if CODE in self._config and not is_done:
            new[CODE] = self._config[CODE]
        if new != saved:
            ownership.ensure(self.path)
            with _writing(self.path):
                write_json(self.path / CONFIG, new)

    def note_not_finite(self, **fields: Any) -> None:
        """Writes nan.json: the step, the replica, and the batch to look at."""
        ownership.ensure(self.path)
        write_json(self.path / NAN_NOTE, fields)

    def save(self, name: str, model: keras.Model, ema_weights: list[np.ndarray] | None) -> str:
        """Saves the model as `name`, with the averaged weights if there are any."""
        ownership.ensure(self.path)
        raw = model.get_weights()
        target = self.path / name
        draft = target.with_name(f"tmp-{target.name}")
        target.parent.mkdir(exist_ok=True)  # `best/`, for what `keep_best` keeps.
        try:
            if ema_weights is not None:
                model.set_weights(ema_weights)
            saved = save_model(model, draft)
            os.replace(draft, target)
        except BaseException:
            # Half a file would only fill the disk. In a folder that is not this run's any more,
            # nothing is removed.
            with contextlib.suppress(OSError, KerasdistError):
                ownership.ensure(self.path)
                draft.unlink(missing_ok=True)
                draft.with_name(WEIGHTS_DRAFT).unlink(missing_ok=True)
            raise
        finally:
            if ema_weights is not None:
                model.set_weights(raw)
        return saved

    def link(self, source: str, name: str) -> None:
        """Gives a file of the run a second name, or copies it where the disk has no links."""
        ownership.ensure(self.path)
        found, target = self.path / source, self.path / name
        if target.exists() and os.path.samefile(found, target):
            return
        draft = target.with_name(f"tmp-{target.name}")
        target.parent.mkdir(exist_ok=True)
        draft.unlink(missing_ok=True)
        try:
            os.link(found, draft)
        except OSError:
            shutil.copyfile(found, draft)
        os.replace(draft, target)

    def finish(
        self, model: keras.Model, result: Mapping[str, Any], ema_weights: list[np.ndarray] | None
    ) -> None:
        """Saves the trained model and result.json."""
        try:
            saved = self.save(FINAL, model, ema_weights)
            digest = result.get("weights_sha256") or weights_sha256(model)
            content = {**result, "dataset": self.dataset, "weights_sha256": digest, "saved": saved}
            write_json(self.path / RESULT, content)
        except (OSError, RuntimeError, KerasdistError) as error:  # h5py raises RuntimeError, too.
            raise RunFailedError(
                f"Saving the trained model failed: {first_line(error)}. Expected a writable folder "
                "with enough space. Make room, then run the same command again: it continues from "
                "the last checkpoint, and no training is lost."
            ) from error

    def stop(self, status: str, error: str) -> None:
        """Writes why a run has no trained model: "diverged", "failed" or "interrupted"."""
        # Whatever fails here, the error that stopped the run matters more.
        with contextlib.suppress(OSError, KerasdistError):
            ownership.ensure(self.path)
            # Not every step is in the log.
            steps = metrics_log.last_step(self.path) if self.steps is None else self.steps
            content = {"status": status, "steps": steps, "error": error, "dataset": self.dataset}
            write_json(self.path / RESULT, content)


def _starts(path: Path) -> list[dict[str, Any]]:
    """The starts that environment.json describes so far, the oldest first."""
    newest = read_object(path)
    if not newest:
        return []
    earlier = newest.pop("earlier", [])
    return [*earlier, newest] if isinstance(earlier, list) else []


def check_usable(path: str | os.PathLike[str], *, resume: bool) -> None:
    """Refuses a folder that holds anything else than a run to continue: nothing is overwritten."""
    folder = Path(path).expanduser()
    if folder.is_symlink():
        raise KerasdistError(
            f"Received `run_dir={str(path)!r}`, which is a symbolic link. Expected a real folder: "
            "a link can point somewhere else later. Give the folder that it points to."
        )
    if resume and is_run(folder):
        return
    if folder.exists() and not folder.is_dir():
        raise KerasdistError(
            f"Received `run_dir={str(path)!r}`, which is a file. Expected a folder. Choose another "
            "name."
        )
    if is_run(folder):
        raise KerasdistError(
            f"Received `run_dir={str(path)!r}`, which already holds a run. With `resume=False` "
            "(`--no-resume`), kerasdist expects a new or empty folder: it overwrites no run. "
            "Choose another name, delete the folder, or continue its run with `resume=True`."
        )
    with _writing(path):
        # A start that was killed while it wrote config.json leaves its draft.
        if folder.exists() and any(p.name != f".{CONFIG}.tmp" for p in folder.iterdir()):
            raise KerasdistError(
                f"Received `run_dir={str(path)!r}`, which is not empty. Expected a new folder, or "
                "the folder of a run to continue: kerasdist overwrites nothing else. Choose "
                "another name."
            )


@contextlib.contextmanager
def _writing(path: str | os.PathLike[str]) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KerasdistError(
            f"Received `run_dir={str(path)!r}`, which cannot be written: {error.strerror}. "
            "Expected a writable folder. Choose another one."
        ) from None
