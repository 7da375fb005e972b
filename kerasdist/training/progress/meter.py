"""Rates of a training: examples and steps per second, and the time spent waiting for batches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple


class Reading(NamedTuple):
    """What was measured up to now: totals of a `Meter`."""

    seconds: float
    steps: int
    examples: int
    waited: float  # for batches; NaN if that was not measured

    def since(self, other: Reading) -> Reading:
        """What was measured after another reading."""
        return Reading(
            self.seconds - other.seconds,
            self.steps - other.steps,
            self.examples - other.examples,
            self.waited - other.waited,
        )

    @property
    def share_waited(self) -> float:
        """The share of the time that steps waited for their batches; NaN if nobody knows."""
        if self.seconds <= 0 or math.isnan(self.waited):
            return math.nan
        # The compiled loop reads the computer's clock, which somebody may set.
        return min(1.0, max(0.0, self.waited / self.seconds))


class Meter:
    """Examples and seconds since the last reading. The clock is an argument, for tests."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._last = clock()
        self.total_examples = 0
        self.total_seconds = 0.0
        self.total_steps = 0
        self.total_waited = 0.0

    def restart(self) -> None:
        """Leaves out what happened since the last reading: evaluation, callbacks, compiling."""
        self._last = self._clock()

    def add(self, num_steps: int, num_examples: int, waited: float = 0.0) -> None:
        """Takes what happened since the last reading for `num_steps` steps.

        For `waited` seconds of that they waited for their batches.
        """
        now = self._clock()
        self.total_seconds += now - self._last
        self._last = now
        self.total_examples += num_examples
        self.total_steps += num_steps
        self.total_waited += waited

    def rates(self) -> tuple[float, float]:
        """`(examples a second, seconds a step)` over everything measured; NaN if nothing was."""
        if not self.total_seconds or not self.total_steps:
            return math.nan, math.nan
        return self.total_examples / self.total_seconds, self.total_seconds / self.total_steps

    def reading(self) -> Reading:
        """Everything measured so far."""
        return Reading(self.total_seconds, self.total_steps, self.total_examples, self.total_waited)
