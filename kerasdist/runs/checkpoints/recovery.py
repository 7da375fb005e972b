"""Saves a run's checkpoints when they are due, and loads the one that a resumed run starts from."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from kerasdist.errors import KerasdistError
from kerasdist.runs import provenance
from kerasdist.runs.checkpoints import Checkpoint, Store, differences
from kerasdist.runs.checkpoints.background import BackgroundSaver
from kerasdist.runs.checkpoints.contents import decoded, encoded
from kerasdist.runs.checkpoints.write_failures import WriteFailures
from kerasdist.runs.file_names import CHECKPOINTS, METRICS
from kerasdist.runs.intervals import Every
from kerasdist.runs.ownership import OwnFolder

# A checkpoint is saved every so many steps, and after so many seconds: a short training loses
# little, too. Large ones are saved less often by time, so that the disk is not busy with them.
DEFAULT_STEPS, DEFAULT_SECONDS, BYTES_PER_SECOND = 1000, 30.0, 5e6
# After a failed save, another one is tried after this time, unless one is due earlier.
RETRY_SECONDS = 30.0
_CHECKPOINT = "a checkpoint"

# Returns a copy of the state. It is called only if a snapshot is really saved.
TakeSnapshot = Callable[[], Mapping[str, np.ndarray]]


def default_interval(num_bytes: int) -> Every:
    """How often checkpoints of so many bytes are saved, if nobody says it.

    Example:
        >>> default_interval(10**6).seconds, default_interval(10**9).seconds
        (30.0, 200.0)
    """
    return Every(steps=DEFAULT_STEPS, seconds=max(DEFAULT_SECONDS, num_bytes / BYTES_PER_SECOND))


class _OwnStore:
    """Saves only while the folder is still the run's own."""

    def __init__(self, folder: OwnFolder, store: Store):
        self._folder, self._store = folder, store

    def save(self, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Path:
        self._folder.ensure()
        try:
            return self._store.save(step, arrays, meta, replace=True)
        except FileNotFoundError:
            self._folder.ensure()  # Somebody removed or replaced it meanwhile.
            return self._store.save(step, arrays, meta, replace=True)


class Recovery:
    """The checkpoints of one run. They are saved in the background and never stop the training.

    Args:
        folder: The run's folder, which this process has locked.
        every: How often to save.
        keep: How many checkpoints to keep, 2 or more.
        identity: What must be the same when the run is resumed.
        jit: Whether XLA compiles the step.
        warn: Called with each warning.
        clock: Seconds, for tests.
    """

    def __init__(
        self,
        folder: Path,
        *,
        every: Every,
        keep: int,
        identity: Mapping[str, Any],
        jit: bool = False,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        # Without parents: if the run's folder is lost, `OwnFolder` makes it again with all its
        # files, or not at all.
        self._store = Store(folder.absolute() / CHECKPOINTS, keep=keep, make_parents=False)
        self._folder = OwnFolder(folder)
        self._saver = BackgroundSaver(_OwnStore(self._folder, self._store))
        self._every, self._warn, self._clock = every, warn, clock
        self._identity = {**identity, **provenance.compiler()}
        self._made_with = {**provenance.made_with(), "jit": jit}
        self._failures = WriteFailures(warn)
        self._last_time = clock()
        # The step and `meta` of the last snapshot, or of the checkpoint that was loaded.
        self._last: tuple[int, Any] | None = None
        self._seen_attempts = 0
        self._seen_losses = 0
        self._has_told_text = False

    def load(self) -> Checkpoint | None:
        """Loads the newest checkpoint that verifies; None if there is none.

        Warns about damaged checkpoints that it skips. Refuses a checkpoint of another run.
        """
        found = self._store.newest()
        for path, reason in self._store.skipped:
            self._warn(f"skipped the checkpoint {path.name}: {reason}")
        if found is None and self._store.skipped:
            raise KerasdistError(
                f"All checkpoints of the run are damaged, in {self._store.folder}: none of them "
                "passes its checksum. Start a new run with another `run_dir` (or, on the command "
                "line, `--no-resume`); nothing here was changed."
            )
        if found is None:
            if (self._folder.path / METRICS).exists():
                self._warn(
                    "the run ended before its first checkpoint, so it starts again from the "
                    "beginning"
                )
            return None
        meta = dict(found.meta)
        identity = meta.pop("identity")
        differences.refuse_other_run(identity, self._identity, found.path)
        rate = differences.rate_warning(identity, self._identity)
        if rate is not None:
            self._warn(rate)
        if "learning_rate" in identity:  # The next checkpoints say how the run began, too.
            self._identity["learning_rate"] = identity["learning_rate"]
        is_deterministic = bool(self._identity.get("deterministic"))
        made_with = meta.pop("made_with", {})
        warning = differences.bits_warning(
            made_with, self._made_with, deterministic=is_deterministic
        )
        if warning is not None:
            self._warn(warning)
        self._last = found.step, meta
        return dataclasses.replace(found, meta=decoded(meta))

    def steps_left(self, step: int) -> int | None:
        """How many steps may run until a save is due by steps; None for no limit."""
        return self._every.steps_left(step)

    def is_due(self, step: int, *, epoch_ended: bool = False) -> bool:
        """Whether to call `save` now."""
        has_failed = self._check_saver()
        waited = self._clock() - self._last_time
        if has_failed and waited >= RETRY_SECONDS:
            return True
        if self._last is not None and step == self._last[0] and not has_failed:
            # The step was saved before its epoch ended. A run that resumes there would end the
            # epoch a second time, so it is saved once more.
            return epoch_ended
        return self._every.is_due(step, waited=waited, epoch_ended=epoch_ended)

    def save(self, step: int, arrays: TakeSnapshot, meta: Mapping[str, Any]) -> None:
        """Hands a snapshot to the background thread, unless it is the same as the last one."""
        has_failed = self._check_saver()
        plain = encoded(meta, self._tell_text)
        if self._last == (step, plain) and not has_failed:
            return
        self._last_time, self._last = self._clock(), (step, plain)
        more = {"identity": self._identity, "made_with": self._made_with}
        self._saver.save(step, arrays(), {**plain, **more})

    def _tell_text(self, kind: str) -> None:
        if not self._has_told_text:
            self._has_told_text = True
            self._warn(
                f"a callback logs a value of the type {kind}: checkpoints keep it as text, so a "
                "resumed run has that in its history. Log numbers or text instead."
            )

    def save_last(
        self, step: int, arrays: TakeSnapshot, meta: Mapping[str, Any]
    ) -> Exception | None:
        """Saves, and waits until everything is on disk. Returns the error if that failed."""
        self._saver.wait()
        self.save(step, arrays, meta)
        self._saver.wait()
        self._check_saver()
        return self._saver.error

    def saved_step(self) -> int:
        """The step of the newest checkpoint on disk; -1 without one."""
        return max(self._store.steps(), default=-1)

    def attempt(self, what: str, write: Callable[[], Any]) -> Exception | None:
        """Calls `write`. A failure is a warning, does not stop the training, and is returned."""
        try:
            write()
        except (OSError, RuntimeError, KerasdistError) as error:  # h5py raises RuntimeError, too.
            self._failures.failed(what, error)
            return error
        self._failures.worked(what)
        self._warn_if_lost()
        return None

    def wait(self, seconds: float) -> None:
        """Waits for the last save, but not longer than this."""
        self._saver.wait(seconds)

    def close(self) -> None:
        """Waits for the last save, also after an error in the training; warns if it failed."""
        self._saver.wait()
        self._check_saver()
        self._saver.close()
        self._folder.close()

    def _check_saver(self) -> bool:
        """Whether the newest snapshot could not be saved; warns about it once."""
        self._warn_if_lost()
        attempts, error = self._saver.outcome
        if attempts > self._seen_attempts:
            self._seen_attempts = attempts
            if error is None:
                self._failures.worked(_CHECKPOINT)
            else:
                self._failures.failed(_CHECKPOINT, error)
        return error is not None and not self._saver.busy

    def _warn_if_lost(self) -> None:
        if self._folder.times_lost > self._seen_losses:
            self._seen_losses = self._folder.times_lost
            self._warn(
                f"the run's folder {self._folder.path} was gone and has been made again: the "
                "training continues and saves there, but what was in it is lost"
            )
