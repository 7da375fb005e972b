"""When a run is saved, what is in a checkpoint besides arrays, and where a run goes on."""

from __future__ import annotations

import dataclasses
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kerasdist.devices.placement import Placement, resolve_shards
from kerasdist.errors import KerasdistError
from kerasdist.runs import circumstances
from kerasdist.runs.checkpoints import Checkpoint, Store
from kerasdist.runs.checkpoints.background import BackgroundSaver
from kerasdist.runs.folder import read_config
from kerasdist.runs.ownership import NotOwnFolderError, OwnFolder

CHECKPOINTS = "checkpoints"
DEFAULT_SAVE_EVERY = 1000
# A snapshot that could not be saved is followed by another after this time, if none is due before.
RETRY_SECONDS = 30.0
_FLOAT = "not a finite float"


@dataclass(frozen=True)
class SaveEvery:
    """Every so many steps, or seconds, or at the end of each epoch."""

    steps: int | None = None
    seconds: float | None = None
    epoch: bool = False

    @classmethod
    def parse(cls, value: Any) -> SaveEvery:
        """`500`, `"500"`, `"30s"` or `"epoch"`.

        Example:
            >>> SaveEvery.parse("30s").seconds
            30.0
        """
        if value is None:
            return cls(steps=DEFAULT_SAVE_EVERY)
        text = str(value).strip().lower()
        if text == "epoch":
            return cls(epoch=True)
        if isinstance(value, bool) or not re.fullmatch(r"\d+|\d+(\.\d+)?s", text):
            raise KerasdistError(
                f"Received `save_every={value!r}`. Expected a number of steps, seconds like '30s', "
                "or 'epoch'. Give for example `save_every='60s'`."
            )
        number = float(text.rstrip("s"))
        if number <= 0:
            raise KerasdistError(
                f"Received `save_every={value!r}`. Expected more than 0. Give for example "
                "`save_every=500`."
            )
        return cls(seconds=number) if text.endswith("s") else cls(steps=int(number))


class Trouble:
    """Tells once that the run's folder cannot be written, and once that it can be again."""

    def __init__(self, warn: Callable[[str], None]):
        self._warn = warn
        self._failing: set[str] = set()
        self._told: set[str] = set()

    def failed(self, what: str, error: Exception) -> None:
        self._failing.add(what)
        reason = _reason(error)
        if reason not in self._told:
            self._told.add(reason)
            self._warn(
                f"could not write {what}: {reason}. The training goes on and this is tried again; "
                "the checkpoints before are as they were."
            )

    def worked(self, what: str) -> None:
        self._failing.discard(what)
        if self._told and not self._failing:
            self._told.clear()
            self._warn("writing to the run's folder works again")


def _reason(error: Exception) -> str:
    """Without file names and times, which would make each failure a new one."""
    if isinstance(error, OSError) and error.errno is not None:
        is_plain = not isinstance(error, NotOwnFolderError)
        text = os.strerror(error.errno) if is_plain else f"{error.filename}: {error.strerror}"
        return text.rstrip(".")
    text = str(error).split("\n")[0]
    # h5py puts the time and numbers in parentheses.
    return (text.split(" (")[0] if isinstance(error, RuntimeError) else text).rstrip(".")


class _OwnStore:
    """Saves only while the run's folder is the run's own."""

    def __init__(self, folder: OwnFolder, store: Store):
        self._folder, self._store = folder, store

    def save(self, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> Path:
        self._folder.ensure()
        try:
            return self._store.save(step, arrays, meta, replace=True)
        except FileNotFoundError:
            self._folder.ensure()  # Somebody removed or replaced it meanwhile.
            return self._store.save(step, arrays, meta, replace=True)


def kept_shards(folder: Path) -> int | None:
    """The shards that a run was begun with, which it keeps on any number of devices."""
    return _kept(folder, "shards")


def kept_seed(folder: Path) -> int | None:
    """The seed that a run was begun with, which may not have come to its first checkpoint."""
    seed = _kept(folder, "seed")
    if seed is None:
        seed = (read_config(folder) or {}).get("seed")
    return seed if isinstance(seed, int) else None


def _kept(folder: Path, name: str) -> int | None:
    if not (folder / CHECKPOINTS).is_dir():
        return None
    meta = Store(folder / CHECKPOINTS, make_parents=False).newest_meta()
    value = (meta or {}).get("identity", {}).get(name)
    return value if isinstance(value, int) else None


def choose_seed(given: int | None, fresh: int, placement: Placement, run_dir: Any) -> int:
    """As given, or as the run has it already, or else the chief's `fresh` one."""
    if given is not None:
        return given
    own = fresh
    path = getattr(run_dir, "path", run_dir)
    if path is not None and placement.is_chief:
        kept = kept_seed(Path(path).expanduser())
        own = own if kept is None else kept
    return placement.of_chief(own)[0]


def choose_shards(given: Any, placement: Placement, deterministic: bool, run_dir: Any) -> int:
    """As given, or as the run has them already, or as many as it takes."""
    path, kept = getattr(run_dir, "path", run_dir), 0
    if given is None and path is not None:
        own = kept_shards(Path(path).expanduser()) if placement.is_chief else None
        (kept,) = placement.of_chief(own or 0)
    if not kept:
        return resolve_shards(given, placement.num_replicas, deterministic)
    try:
        return resolve_shards(kept, placement.num_replicas, deterministic)
    except KerasdistError as error:
        raise KerasdistError(f"{error} The run in {path} was begun with {kept}.") from None


class Recovery:
    """The checkpoints of one run. Saving happens in the background and never stops the training."""

    def __init__(
        self,
        folder: Path,
        *,
        every: SaveEvery,
        keep: int,
        identity: Mapping[str, Any],
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        # Not the folders above: they are made again with all that belongs to a run, or not at all.
        self._store = Store(folder.absolute() / CHECKPOINTS, keep=keep, make_parents=False)
        self._folder = OwnFolder(folder)
        self._saver = BackgroundSaver(_OwnStore(self._folder, self._store))
        self._every, self._warn, self._clock = every, warn, clock
        self._identity = {**identity, **circumstances.compiler()}
        self._made_with = circumstances.made_with()
        self._trouble = Trouble(warn)
        self._last_time = clock()
        # The step and `meta` that were handed over last, or that the run goes on from.
        self._last: tuple[int, Any] | None = None
        self._seen_attempts = 0
        self._seen_losses = 0

    def load(self) -> Checkpoint | None:
        """The newest checkpoint that verifies; says which were skipped, refuses another run's."""
        found = self._store.newest()
        for path, reason in self._store.skipped:
            self._warn(f"skipped the checkpoint {path.name}: {reason}")
        if found is None and self._store.skipped:
            raise KerasdistError(
                f"Received a run whose checkpoints are all damaged, in {self._store.folder}. "
                "Expected one that verifies. Start a new run with `--no-resume` or another "
                "`run_dir`; nothing here was changed."
            )
        if found is None:
            return None
        meta = dict(found.meta)
        _refuse_differences(meta.pop("identity"), self._identity, found.path)
        self._tell_differences(meta.pop("made_with", {}))
        self._last = found.step, meta
        return dataclasses.replace(found, meta=_decoded(meta))

    def steps_until_due(self, step: int) -> int:
        """How many steps may run before a save by steps is due."""
        if self._every.steps is None:
            return 2**40
        return self._every.steps - step % self._every.steps

    def is_due(self, step: int, *, epoch_ended: bool = False) -> bool:
        has_failed = self._notice()
        waited = self._clock() - self._last_time
        if has_failed and waited >= RETRY_SECONDS:
            return True
        if self._last is not None and step == self._last[0] and not has_failed:
            # Saved within the epoch: going on from there would end the epoch a second time.
            return epoch_ended
        if self._every.epoch:
            return epoch_ended
        if self._every.seconds is not None:
            return waited >= self._every.seconds
        return self._every.steps is not None and step > 0 and step % self._every.steps == 0

    def save(
        self, step: int, arrays: Callable[[], Mapping[str, np.ndarray]], meta: Mapping[str, Any]
    ) -> None:
        """Hands a snapshot to the background, unless just that was the last one."""
        has_failed = self._notice()
        encoded = _encoded(meta)
        if self._last == (step, encoded) and not has_failed:
            return
        self._last_time, self._last = self._clock(), (step, encoded)
        more = {"identity": self._identity, "made_with": self._made_with}
        self._saver.save(step, arrays(), {**encoded, **more})

    def save_last(
        self, step: int, arrays: Callable[[], Mapping[str, np.ndarray]], meta: Mapping[str, Any]
    ) -> Exception | None:
        """Saves and waits for everything to be on disk; returns why that failed, if it did."""
        self._saver.wait()
        self.save(step, arrays, meta)
        self._saver.wait()
        self._notice()
        return self._saver.error

    def attempt(self, what: str, write: Callable[[], Any]) -> Exception | None:
        """Writes something else to the folder; a failure is told and does not stop the training."""
        try:
            write()
        except (OSError, RuntimeError, KerasdistError) as error:  # h5py has RuntimeErrors, too.
            self._trouble.failed(what, error)
            return error
        self._trouble.worked(what)
        self._tell_loss()
        return None

    def close(self) -> None:
        """Writes what was handed over, also after an error in the training; tells a failure."""
        self._saver.wait()
        self._notice()
        self._saver.close()
        self._folder.close()

    def _notice(self) -> bool:
        """Whether the newest snapshot could not be saved; tells so once."""
        self._tell_loss()
        attempts, error = self._saver.outcome
        if attempts > self._seen_attempts:
            self._seen_attempts = attempts
            if error is None:
                self._trouble.worked("a checkpoint")
            else:
                self._trouble.failed("a checkpoint", error)
        return error is not None and not self._saver.busy

    def _tell_loss(self) -> None:
        if self._folder.times_lost > self._seen_losses:
            self._seen_losses = self._folder.times_lost
            self._warn(
                f"the run's folder {self._folder.path} was gone and is made again: the training "
                "goes on and saves there, but what was in it is lost"
            )

    def _tell_differences(self, before: Mapping[str, Any]) -> None:
        names = circumstances.VERSIONS
        if self._identity.get("deterministic"):
            names += circumstances.MACHINE
        known = [name for name in names if name in before]
        different = _differences(before, self._made_with, known)
        if different:
            self._warn(
                f"the run was saved under other circumstances: {'; '.join(different)}. It goes on, "
                "but may not end with the bits of a run that was never stopped"
            )


def of_chief(saved: Checkpoint | None, placement: Placement) -> Checkpoint | None:
    """The chief's checkpoint: its folder need not be one that the others can read."""
    workers = placement.workers
    if workers is None:
        return saved
    known = None if saved is None else [saved.step, str(saved.path), _encoded(saved.meta)]
    known, arrays = workers.arrays_of_chief(known, {} if saved is None else saved.arrays)
    if known is None or saved is not None:
        return saved
    step, path, meta = known
    return Checkpoint(step, Path(path), arrays, _decoded(meta))


def _encoded(value: Any) -> Any:
    """Plain JSON: a metric may be NaN or infinite, which JSON has no words for."""
    if isinstance(value, Mapping):
        return {key: _encoded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_encoded(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(value)}
    return value


def _decoded(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {_FLOAT}:
            return float(value[_FLOAT])
        return {key: _decoded(item) for key, item in value.items()}
    return [_decoded(item) for item in value] if isinstance(value, list) else value


def _refuse_differences(saved: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    different = _differences(saved, now, sorted({*saved, *now}))
    if different:
        raise KerasdistError(
            f"Received a run to continue from {path} that differs from this one: "
            f"{'; '.join(different)}. Expected the same model, data and settings. Put them back, "
            "or start a new run with `--no-resume` or another `run_dir`."
        )


def _differences(
    saved: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]
) -> list[str]:
    return [
        f"{name} was {saved.get(name)!r} and is {now.get(name)!r}"
        for name in names
        if saved.get(name) != now.get(name)
    ]
