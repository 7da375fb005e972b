"""Rates of a training: examples and steps per second, and the time spent waiting for batches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import NamedTuple


class Reading(NamedTuple):
    """The totals of a `Meter` at one moment."""

    seconds: float
    steps: int
    examples: int
    waited: float  # seconds of waiting for batches; NaN if not measured

    def since(self, other: Reading) -> Reading:
        """What was measured since another reading."""
        return Reading(
            self.seconds - other.seconds,
            self.steps - other.steps,
            self.examples - other.examples,
            self.waited - other.waited,
        )

    @property
    def share_waited(self) -> float:
        """The share of the time spent waiting for batches; NaN if not measured."""
        if self.seconds <= 0 or math.isnan(self.waited):
            return math.nan
        # The compiled loop reads the system clock, which can be set back.
        return min(1.0, max(0.0, self.waited / self.seconds))


class Meter:
    """Adds up steps, examples and seconds. The clock is an argument, for tests."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._last = clock()
        self.total_examples = 0
        self.total_seconds = 0.0
        self.total_steps = 0
        self.total_waited = 0.0

    def restart(self) -> None:
        """Ignores the time since the last call: evaluation, callbacks, compiling."""
        self._last = self._clock()

    def add(self, num_steps: int, num_examples: int, waited: float = 0.0) -> None:
        """Counts the time since the last call as the time of `num_steps` steps.

        For `waited` seconds of it, they waited for batches.
        """
        now = self._clock()
        self.total_seconds += now - self._last
        self._last = now
        self.total_examples += num_examples
        self.total_steps += num_steps
        self.total_waited += waited

    def rates(self) -> tuple[float, float]:
        """`(examples per second, seconds per step)` so far; NaN before anything is measured."""
        if not self.total_seconds or not self.total_steps:
            return math.nan, math.nan
        return self.total_examples / self.total_seconds, self.total_seconds / self.total_steps

    def reading(self) -> Reading:
        """The totals so far."""
        return Reading(self.total_seconds, self.total_steps, self.total_examples, self.total_waited)
