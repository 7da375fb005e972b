"""When a run is saved, what is in a checkpoint besides arrays, and where a run goes on."""

from __future__ import annotations

import dataclasses
import math
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kerasdist.checkpoints import Checkpoint, Store
from kerasdist.errors import KerasdistError
from kerasdist.saving import BackgroundSaver

CHECKPOINTS = "checkpoints"
DEFAULT_SAVE_EVERY = 1000
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


class Recovery:
    """The checkpoints of one run. Saving happens in the background and never stops the training."""

    def __init__(
        self,
        folder: Path,
        *,
        every: SaveEvery,
        keep: int,
        identity: Mapping[str, Any],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._store = Store(folder / CHECKPOINTS, keep=keep)
        self._saver = BackgroundSaver(self._store)
        self._every, self._identity, self._say, self._clock = every, dict(identity), say, clock
        self._last_time = clock()
        self._last_step: int | None = None
        self._told: str | None = None

    def load(self) -> Checkpoint | None:
        """The newest checkpoint that verifies; says which were skipped, refuses another run's."""
        found = self._store.newest()
        for path, reason in self._store.skipped:
            self._say(f"skipped the checkpoint {path.name}: {reason}")
        if found is None and self._store.skipped:
            raise KerasdistError(
                f"Received a run whose checkpoints are all damaged, in {self._store.folder}. "
                "Expected one that verifies. Start a new run with `--no-resume` or another "
                "`run_dir`; nothing here was changed."
            )
        if found is None:
            return None
        _refuse_differences(found.meta["identity"], self._identity, found.path)
        self._last_step = found.step
        return dataclasses.replace(found, meta=_decoded(found.meta))

    def steps_until_due(self, step: int) -> int:
        """How many steps may run before a save by steps is due."""
        if self._every.steps is None:
            return 2**40
        return self._every.steps - step % self._every.steps

    def is_due(self, step: int, *, epoch_ended: bool = False) -> bool:
        if step == self._last_step:
            return False
        if self._every.epoch:
            return epoch_ended
        if self._every.seconds is not None:
            return self._clock() - self._last_time >= self._every.seconds
        return self._every.steps is not None and step > 0 and step % self._every.steps == 0

    def save(self, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Hands a snapshot to the background; tells once if an earlier one could not be saved."""
        self._tell_failure()
        self._last_time, self._last_step = self._clock(), step
        self._saver.save(step, arrays, {**_encoded(meta), "identity": self._identity})

    def finish(self) -> Exception | None:
        """Waits for everything to be on disk; returns why the last save failed, if it did."""
        self._saver.wait()
        self._tell_failure()
        return self._saver.error

    def close(self) -> None:
        """Writes what was handed over, also after an error in the training."""
        self._saver.wait()
        self._saver.close()

    def _tell_failure(self) -> None:
        error = self._saver.error
        reason = None if error is None else str(error)
        if reason is not None and reason != self._told:
            self._say(
                f"could not save a checkpoint: {reason}. The training goes on and saving is tried "
                "again; the checkpoints before are as they were."
            )
        self._told = reason


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
    different = [
        f"{name} was {saved.get(name)!r} and is {now.get(name)!r}"
        for name in sorted({*saved, *now})
        if saved.get(name) != now.get(name)
    ]
    if different:
        raise KerasdistError(
            f"Received a run to continue from {path} that differs from this one: "
            f"{'; '.join(different)}. Expected the same model, data and settings. Put them back, "
            "or start a new run with `--no-resume` or another `run_dir`."
        )
