"""What a measuring process notes about its epochs: seconds, and the steps that were really done."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable
from typing import Any

import keras

from kerasdist.errors import KerasdistError
from kerasdist.training.progress.meter import Meter
from kerasdist.training.progress.reporter import Reporter

# A round has at least this many steps. The first two are not traced.
FEWEST_STEPS = 4
# Sends an answer to the process that asked.
Say = Callable[[dict[str, Any]], None]
# Keras's logs of an epoch.
Logs = dict[str, Any] | None


class CountedSteps(Reporter):
    """Shows nothing, and knows how many steps the training has done."""

    def __init__(self) -> None:
        super().__init__("silent")
        self.done = 0

    def advance(self, step: int, step_in_epoch: int, meter: Meter) -> None:
        super().advance(step, step_in_epoch, meter)
        self.done = step


class Timed(keras.callbacks.Callback):
    """Knows the seconds of each round, and how many steps it really had.

    `count` returns the steps of the training so far. The trainer sets it, and how many epochs a
    round has.
    """

    count: Callable[[], int]
    epochs_per_round = 1

    def __init__(self) -> None:
        super().__init__()
        self._began, self._done = 0.0, 0

    def begin(self) -> None:
        """At the start of a round."""
        self._done, self._began = self.count(), time.perf_counter()

    def end(self) -> tuple[int, float]:
        """At its end: its steps and its seconds."""
        took = time.perf_counter() - self._began
        return self.count() - self._done, took


class Rounds(Timed):
    """Makes some epochs a round: waits before it, and afterwards says how long it took."""

    def __init__(self, wait: Callable[[], bool], say: Say):
        super().__init__()
        self._wait, self._say = wait, say

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        if epoch % self.epochs_per_round:
            return
        if epoch and not self._wait():  # The first round compiles, and starts at once.
            self.model.stop_training = True
        self.begin()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        number, is_not_last = divmod(epoch + 1, self.epochs_per_round)
        if is_not_last:
            return
        steps, took = self.end()
        answer = {"round": number - 1, "steps": steps, "seconds": took, "memory": peak_memory()}
        self._say(answer)


class Trial(Timed):
    """Measures the time until the end of the first step, and about the time per later step."""

    def __init__(self) -> None:
        super().__init__()
        self._started = time.perf_counter()
        self._first = (0, 0.0)
        self._later: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self.begin()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        steps, took = self.end()
        if not epoch:
            self._first = steps, time.perf_counter() - self._started
        elif steps:
            self._later.append(took / steps)

    @property
    def seconds_per_step(self) -> float:
        if not self._later:
            raise KerasdistError(
                f"The data ended after {self._first[0]} steps and cannot be read again. Expected "
                "data for several rounds. Use data that can be repeated."
            )
        return min(self._later)

    @property
    def first_step(self) -> float:
        steps, whole = self._first
        return whole - (steps - 1) * self.seconds_per_step


def peak_memory() -> int:
    """The peak memory of this process, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
