"""Looks for the largest batch that fits and for the fastest one: doubling, then halving the gap.

It knows nothing of devices: the caller tries a size and says what happened.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from kerasdist.errors import KerasdistError

# A smaller batch that is nearly as fast is better: it makes more updates of the same examples.
_NEARLY = 0.95
# How exactly the largest size is found: to this part of it.
_PART = 8
# A prediction of memory from two smaller sizes may be wrong by this much.
_UNSURE = 1.05


@dataclass(frozen=True)
class Trial:
    """What happened with one batch size.

    Attributes:
        batch_size: Examples per step, over all devices.
        fits: Whether the steps ran.
        examples_per_second: The speed; None if they did not.
        seconds_per_step: The time of a step; None if they did not.
        memory: The peak memory in bytes, of the fullest device or of the process; None if unknown.
        note: Why it does not fit.
    """

    batch_size: int
    fits: bool
    examples_per_second: float | None = None
    seconds_per_step: float | None = None
    memory: int | None = None
    note: str = ""


@dataclass(frozen=True)
class BatchSizes:
    """What a search for batch sizes found.

    Attributes:
        trials: All sizes that were tried, ascending.
        largest: The largest batch size that fits, as far as it was tried.
        fastest: The smallest batch size whose speed is within 5% of the best.
        ended: Why no larger batch was tried.
    """

    trials: tuple[Trial, ...]
    largest: int
    fastest: int
    ended: str


@dataclass(frozen=True)
class Limits:
    """Where a search begins and ends.

    Attributes:
        start: The first size to try.
        least: No smaller size is tried.
        most: No larger one: usually the number of examples.
        seconds: About how long the search may take.
        memory: The bytes that a process may use, now; None where the device itself refuses more.
    """

    start: int
    least: int
    most: int
    seconds: float
    memory: Callable[[], int | None]
    clock: Callable[[], float] = time.monotonic


class Search:
    """One search. `attempt(size)` trains a few steps; `show` is told of each trial."""

    def __init__(
        self,
        limits: Limits,
        attempt: Callable[[int], Trial],
        show: Callable[[Trial], None] | None = None,
    ):
        self._limits, self._attempt, self._show = limits, attempt, show
        self._trials: dict[int, Trial] = {}
        self._longest = 0.0  # seconds for what a trial does besides its steps
        self._began = limits.clock()

    def learn(self, *, least: int, most: int) -> None:
        """Other bounds, which a trial has found out about the devices and the data."""
        self._limits = replace(self._limits, least=min(least, most), most=most)

    def run(self) -> BatchSizes:
        """Tries sizes until the largest one is known or the time is over."""
        fitting, too_large = self._first()
        ended = ""
        while not ended:
            size = self._next(fitting, too_large)
            if size is None:
                ended = self._ended(too_large)
            elif self._needs(size) is not None:
                too_large = size
            elif self._takes(size) > self._left():
                ended = f"{size:,} would take too long"
            elif self._try(size).fits:
                fitting = size
            else:
                too_large = size
        return self._result(ended)

    def _first(self) -> tuple[int, int | None]:
        """`(a size that fits, a size that does not)`."""
        size, too_large = min(self._limits.start, self._limits.most), None
        while not self._try(size).fits:
            if size <= self._limits.least:
                raise KerasdistError(
                    f"A batch of {size} does not fit: {self._trials[size].note}. Expected memory "
                    "for at least one example per shard. Use a smaller model, more devices or "
                    "`mixed_bfloat16` as the precision."
                )
            size, too_large = max(self._limits.least, size // 4), size
        return size, too_large

    def _next(self, fitting: int, too_large: int | None) -> int | None:
        """The next size to try; None if the largest is known."""
        if too_large is None:
            return min(2 * fitting, self._limits.most) if fitting < self._limits.most else None
        grain = max(1, 2 ** (fitting.bit_length() - 1) // _PART)
        middle = (fitting + too_large) // 2 // grain * grain
        return middle if fitting < middle < too_large else None

    def _try(self, size: int) -> Trial:
        began = self._limits.clock()
        trial = self._attempt(size)
        took = self._limits.clock() - began
        self._longest = max(self._longest, took)
        self._trials[size] = trial
        if self._show is not None:
            self._show(trial)
        return trial

    def _needs(self, size: int) -> int | None:
        """The bytes that a size would need, if that is more than there are."""
        limit, known = self._limits.memory(), self._known()
        if limit is None or len(known) < 2:
            return None
        (small, less), (large, more) = known[-2:]
        slope = max(0.0, (more - less) / (large - small))
        needed = int((more + slope * (size - large)) * _UNSURE)
        if needed <= limit:
            return None
        note = f"would need about {gigabytes(needed)} of {gigabytes(limit)}"
        if size not in self._trials:
            self._trials[size] = Trial(size, fits=False, memory=needed, note=note)
        return needed

    def _known(self) -> list[tuple[int, int]]:
        """`(size, bytes)` of what fits, ascending."""
        found = [t for t in self._trials.values() if t.fits and t.memory is not None]
        return sorted((trial.batch_size, trial.memory or 0) for trial in found)

    def _takes(self, size: int) -> float:
        """About how many seconds a trial takes: as the longest one, and its steps longer."""
        trials = [t for t in self._trials.values() if t.fits and t.seconds_per_step]
        largest = max(trials, key=lambda trial: trial.batch_size)
        step = largest.seconds_per_step or 0.0
        return self._longest + 3 * step * (size / largest.batch_size - 1)

    def _left(self) -> float:
        return self._limits.seconds - (self._limits.clock() - self._began)

    def _ended(self, too_large: int | None) -> str:
        if too_large is None:
            return f"the data has {self._limits.most:,} examples"
        return f"{too_large:,} {self._trials[too_large].note or 'does not fit'}"

    def _result(self, ended: str) -> BatchSizes:
        trials = sorted(self._trials.values(), key=lambda trial: trial.batch_size)
        speeds = {t.batch_size: t.examples_per_second or 0.0 for t in trials if t.fits}
        best = max(speeds.values())
        fastest = next(size for size, speed in speeds.items() if speed >= _NEARLY * best)
        return BatchSizes(tuple(trials), max(speeds), fastest, ended)


def gigabytes(size: int) -> str:
    """A size in memory.

    Example:
        >>> gigabytes(3 * 2**29)
        '1.5 GB'
    """
    return f"{size / 2**30:.2g} GB" if size < 10 * 2**30 else f"{size / 2**30:.0f} GB"
