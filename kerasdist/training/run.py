"""The run behind a training: its folder, checkpoints, logs and report, or nothing at all.

`KeptRun` and `NoRun` have the same interface, so a training does not ask which one it has.
"""

from __future__ import annotations

import contextlib
import math
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras

from kerasdist import __version__
from kerasdist.data.augmentation import element_spec
from kerasdist.engine.engine import Engine
from kerasdist.errors import DivergedError, KerasdistError, RunFailedError
from kerasdist.model_files import layer_table
from kerasdist.models import pure
from kerasdist.reports.live import LiveReport, write_report
from kerasdist.runs import architecture, ownership, provenance
from kerasdist.runs.checkpoints import Checkpoint
from kerasdist.runs.checkpoints.contents import Snapshot
from kerasdist.runs.checkpoints.recovery import Recovery, default_interval
from kerasdist.runs.file_names import METRICS, NAN_NOTE
from kerasdist.runs.folder import RunFolder
from kerasdist.runs.lock import RunLock
from kerasdist.runs.results import direction
from kerasdist.runs.trained_model import weights_sha256
from kerasdist.training.best.best_model import BestModel
from kerasdist.training.best.best_models import BestModels
from kerasdist.training.options import TrainingOptions
from kerasdist.training.preparation import Prepared, note, run_identity

# What a run is whose training ended with an error.
_ENDS = {RunFailedError: "failed", DivergedError: "diverged"}
# A process that must end waits this long for a checkpoint that is being written.
_LAST_SAVE_SECONDS = 5.0


class NoRun:
    """A training that keeps nothing. On several workers, every worker but the chief has this."""

    path: Path | None = None

    def load(self) -> Checkpoint | None:
        return None

    def rewind(self, step: int, epoch: int, *, is_done: bool = False) -> None:
        """Nothing was logged."""

    def log(self, **fields: Any) -> None:
        """Nothing is logged."""

    def steps_until_save(self, step: int) -> int | None:
        return None

    def save_if_due(self, snapshot: Callable[[], Snapshot], *, epoch_ended: bool) -> None:
        """Nothing is saved."""

    def save_last(self, engine: Engine, snapshot: Callable[[], Snapshot]) -> None:
        """Nothing is saved."""

    @property
    def best_value(self) -> float | None:
        return None

    @best_value.setter
    def best_value(self, value: float | None) -> None:
        """Nothing is remembered."""

    def keep_best(self, engine: Engine, logs: dict[str, Any], *, epoch: int, step: int) -> None:
        """Nothing is kept."""

    def has_folder(self) -> bool:
        return False

    def note_not_finite(self, **fields: Any) -> None:
        """Nothing is written."""

    def note_raw_weights(self, model: keras.Model) -> None:
        """Nothing is written."""

    def write_page(self) -> None:
        """There is no report."""

    def stop(self, step: int, *, has_page: bool, error: KerasdistError | None = None) -> None:
        """There is no report."""

    def fail(self, message: str) -> None:
        """Nothing is written."""

    def finish(
        self, model: keras.Model, result: Mapping[str, Any], ema_weights: list[Any] | None
    ) -> None:
        """Nothing is written."""


class KeptRun:
    """A run that is kept in a folder. Trouble with the disk does not stop the training."""

    def __init__(
        self, folder: RunFolder, recovery: Recovery, monitor: str | None, num_best: int = 1
    ):
        self.path = folder.path
        # "caller" stands for data that came from the caller of `fit`, not from a recipe.
        self.dataset = None if folder.dataset == "caller" else folder.dataset
        self._folder, self._recovery = folder, recovery
        others = BestModels(folder, num_best, recovery.attempt, recovery.saved_step)
        self._best = BestModel(folder, monitor, recovery.attempt, others)
        self._report = LiveReport(folder.path)
        self._unwritten: deque[dict[str, Any]] = deque()
        self._raw_digest: str | None = None

    def load(self) -> Checkpoint | None:
        """The newest checkpoint that verifies."""
        return self._recovery.load()

    def rewind(self, step: int, epoch: int, *, is_done: bool = False) -> None:
        """Removes from the log what will be logged again, and how the run ended before."""
        self._folder.rewind(step, epoch, is_done=is_done)
        self._best.rewind(epoch)

    def log(self, **fields: Any) -> None:
        """Appends to metrics.jsonl, after what could not be written before."""
        self._unwritten.append(fields)
        self._write_log()

    def _write_log(self) -> Exception | None:
        def write() -> None:
            while self._unwritten:
                self._folder.log(**self._unwritten[0])
                self._unwritten.popleft()

        return self._recovery.attempt(METRICS, write)

    def steps_until_save(self, step: int) -> int | None:
        """How many steps may run before the next checkpoint; None if steps do not decide."""
        return self._recovery.steps_left(step)

    def save_if_due(self, snapshot: Callable[[], Snapshot], *, epoch_ended: bool) -> None:
        """Saves in the background if it is time."""
        taken = snapshot()
        if self._recovery.is_due(taken.step, epoch_ended=epoch_ended):
            self._recovery.save(taken.step, taken.arrays, taken.meta)

    def save_last(self, engine: Engine, snapshot: Callable[[], Snapshot]) -> None:
        """Saves everything and waits until it is on disk."""
        best_error, log_error = self._best.write_missing(engine), self._write_log()
        taken = snapshot()
        error = self._recovery.save_last(taken.step, taken.arrays, taken.meta)
        error = error or best_error or log_error
        if error is not None:
            raise RunFailedError(
                f"The end of the run could not be saved: {error}. Expected a folder that can be "
                "written to. Free some space and start the same command again; the earlier "
                "checkpoints are intact."
            ) from error
        self._best.saved()

    @property
    def best_value(self) -> float | None:
        """The monitored value of best.keras."""
        return self._best.written

    @best_value.setter
    def best_value(self, value: float | None) -> None:
        self._best.value = self._best.written = value

    def keep_best(self, engine: Engine, logs: dict[str, Any], *, epoch: int, step: int) -> None:
        """Writes best.keras if this epoch was the best. Epochs are counted from 1."""
        self._best.keep(engine, logs, epoch=epoch, step=step)

    def has_folder(self) -> bool:
        """Whether the folder is still this run's: whoever writes there by path asks first."""
        path = self._folder.path
        return self._recovery.attempt("summaries", lambda: ownership.ensure(path)) is None

    def note_not_finite(self, **fields: Any) -> None:
        """Writes nan.json."""
        self._recovery.attempt(NAN_NOTE, lambda: self._folder.note_not_finite(**fields))

    def note_raw_weights(self, model: keras.Model) -> None:
        """Keeps the hash of the weights before an optimizer with `use_ema` replaces them."""
        if model.optimizer is not None and pure.loss_scale(model.optimizer)[0].use_ema:
            self._raw_digest = weights_sha256(model)

    def write_page(self) -> None:
        """Writes the report of a run that is training, as often as costs next to nothing."""
        self._report.write()

    def stop(self, step: int, *, has_page: bool, error: KerasdistError | None = None) -> None:
        """Corrects the report of a run that ended after `step`: its last page says it is running.

        The folder's result.json will say the step, too, whoever writes it.
        """
        self._folder.steps = step
        status = next((name for kind, name in _ENDS.items() if isinstance(error, kind)), None)
        if status is not None:
            self._folder.stop(status, str(error))
        if has_page:
            write_report(self._folder.path, status=status or "unfinished")

    def fail(self, message: str) -> None:
        """Notes why the process is about to end. Lets a checkpoint that is being written finish."""
        self._folder.stop("failed", message)
        write_report(self._folder.path, status="failed")
        self._recovery.wait(_LAST_SAVE_SECONDS)

    def finish(
        self, model: keras.Model, result: Mapping[str, Any], ema_weights: list[Any] | None
    ) -> None:
        """Writes the trained model, result.json and the report."""
        digest = {"weights_sha256": self._raw_digest} if self._raw_digest else {}
        self._folder.finish(model, {**result, **digest}, ema_weights)
        write_report(self._folder.path, status="finished")


Run = KeptRun | NoRun


def _num_bytes(model: keras.Model) -> int:
    """About the size of a checkpoint: an optimizer often has two values per weight."""
    return 3 * sum(v.value.dtype.size * math.prod(v.shape) for v in model.weights)


def open_run(stack: contextlib.ExitStack, options: TrainingOptions, prepared: Prepared) -> Run:
    """Opens and locks the run's folder, if there is one. The `stack` closes it."""
    keeping, placement = options.keeping, prepared.placement
    if keeping.run_dir is None or not placement.is_chief:
        return NoRun()
    folder = keeping.folder
    if folder is None:
        stream, seed = prepared.data.stream, prepared.seed
        size = options.data.batch_size or (None if stream.arrays is None else stream.batch_size)
        config = {"kerasdist": __version__, "batch_size": size, "seed": seed}
        folder = RunFolder(keeping.run_dir, config, resume=keeping.resume)
    if not keeping.is_locked:
        stack.enter_context(RunLock(folder.path))
    # Without augmentation where possible: this is how the model is fed when it is used.
    if prepared.validation is None:
        spec = element_spec(prepared.data.stream, options.data.augment)
    else:
        spec = prepared.validation.stream.element_spec
    model = architecture.describe(prepared.model, spec)
    model["summary"] = layer_table.summary(prepared.model)
    environment = provenance.describe(placement.titles)
    environment |= direction.as_fields(pure.higher_is_better(prepared.model))
    if (told := note(options, prepared)) is not None:  # It is also said, but not to a silent `fit`.
        environment["note"] = told
    folder.describe(model, environment)
    recovery = Recovery(
        folder.path,
        every=keeping.save_every or default_interval(_num_bytes(prepared.model)),
        keep=keeping.keep,
        identity=run_identity(options, prepared),
        jit=prepared.jit.is_on,
        warn=options.watching.reporter.warn,
    )
    stack.callback(recovery.close)
    return KeptRun(folder, recovery, keeping.monitor, keeping.keep_best)
