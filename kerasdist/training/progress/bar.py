"""The lines of the live display: progress bar, metrics, rates and time left."""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from kerasdist.phases.text import GAP, bar, decimal, duration
from kerasdist.training.progress.meter import Reading

# Rates and the time left are computed from this many recent seconds.
SECONDS_OF_RATES = 10.0
_SECONDS_BETWEEN_READINGS = 0.1
_WIDEST_BAR, _NARROWEST_BAR = 40, 8
# How much room the values of an epoch's summary usually need.
_USUAL_VALUE, _USUAL_RATE = len("0.1234"), "1,000 examples/s"


class Piece(NamedTuple):
    """Some text and its kind, which decides its colour: "label", "value", "done", "rest" or ""."""

    text: str
    kind: str = ""


Line = list[Piece]


def number(value: Any, digits: int = 4) -> str:
    """`0.1235`, `[0.5, 1]`."""
    if np.ndim(value):
        return f"[{', '.join(number(item, digits) for item in value)}]"
    return decimal(float(value), digits) if isinstance(value, (float, np.floating)) else str(value)


def rate_text(examples_per_second: float) -> str:
    text = f"{examples_per_second:.3g}"
    return f"{examples_per_second:,.0f}" if examples_per_second >= 100 else text


class Progress:
    """How far a training is. The time left follows from recent steps and the last validation.

    `epochs`, `steps` and `epoch_steps` are the plan, as far as it is known. `logs` holds the
    metrics to show: `Watch.training` in watch.py says how they are read.
    """

    def __init__(
        self,
        epochs: int | None,
        steps: int | None,
        epoch_steps: int | None,
        *,
        clock: Callable[[], float] = time.perf_counter,
    ):
        if steps is not None:
            epochs = -(-steps // epoch_steps) if epoch_steps else None
        self._epochs, self._steps, self._epoch_steps = epochs, steps, epoch_steps
        self._clock = clock
        self._readings: deque[Reading] = deque([Reading(0.0, 0, 0, 0.0)])
        self._began = self._stopped = clock()
        self._at_begin = self._readings[0]
        self._between: float | None = None
        self._has_advanced = self._has_ended = self._is_stopped = False
        self._validation: tuple[int, int | None] | None = None
        self._waits: tuple[str, float] | None = None
        self.epoch = self.step = self.step_in_epoch = 0
        self.logs: Mapping[str, Any] = {}
        self._layout = Layout([], 0)
        self._about: tuple[list[str], int] | None = None

    def begin_epoch(self, epoch: int, step: int, step_in_epoch: int) -> None:
        now = self._clock()
        if self._has_ended:
            self._between = now - self._stopped
        self._began, self._at_begin = now, self._readings[-1]
        self.epoch, self.step, self.step_in_epoch = epoch, step, step_in_epoch
        self._validation, self._has_ended, self.logs = None, False, {}

    def advance(self, step: int, step_in_epoch: int, reading: Reading) -> None:
        """After some steps. `reading` holds the totals of the training so far."""
        self.step, self.step_in_epoch, self._has_advanced = step, step_in_epoch, True
        self._stopped = self._clock()
        readings = self._readings
        if len(readings) > 1 and reading.seconds - readings[-2].seconds < _SECONDS_BETWEEN_READINGS:
            readings.pop()
        readings.append(reading)
        while len(readings) > 2 and reading.seconds - readings[1].seconds > SECONDS_OF_RATES:
            readings.popleft()

    def wait(self, what: str | None) -> None:
        """The training waits for something that takes long, such as compiling; None: no more."""
        self._waits = None if what is None else (what, self._clock())

    def validate(self, done: int, total: int | None) -> None:
        """Validation has evaluated `done` of its batches."""
        self._validation = (done, total)

    def end_epoch(self) -> None:
        self._has_ended = True
        self._validation = None
        if self._epoch_steps is None:
            self._epoch_steps = self.step_in_epoch or None  # Assume that all epochs are alike.

    def stop(self) -> None:
        """The training stops early: there is no time left to show."""
        self._is_stopped = True

    def _recently(self) -> Reading | None:
        """What was measured in the last seconds; None if nothing was measured."""
        last, first = self._readings[-1], self._readings[0]
        if last.seconds <= first.seconds or last.steps <= first.steps:
            return None
        return last.since(first)

    def _steps_of_epoch(self) -> int | None:
        total = self._epoch_steps
        if self._steps is not None:
            left = self.step_in_epoch + self._steps - self.step
            total = left if total is None else min(total, left)
        return total if total is not None and total >= self.step_in_epoch else None

    def seconds_left(self) -> tuple[float | None, float | None]:
        """`(seconds left in this epoch, seconds left in the run)`; None if unknown."""
        recent, of_epoch = self._recently(), self._steps_of_epoch()
        if recent is None or self._is_stopped:
            return None, None
        step = recent.seconds / recent.steps
        epoch = None if of_epoch is None else (of_epoch - self.step_in_epoch) * step
        between = self._between or 0.0
        # How much of the validation after this epoch is over.
        is_pausing = self._validation is not None or self._has_ended
        passed = min(between, self._clock() - self._stopped) if is_pausing else 0.0
        if self._steps is not None:
            steps_left = self._steps - self.step
            ends = 1 + (steps_left // self._epoch_steps if self._epoch_steps else 0)
            return epoch, steps_left * step + ends * between - passed
        if self._epochs is None or epoch is None or self._epoch_steps is None:
            return epoch, None
        more = self._epochs - self.epoch - 1
        whole = more * (self._epoch_steps * step + between) + epoch + between - passed
        return epoch, max(whole, 0.0)

    def lines(self, width: int, *, ascii_only: bool = False) -> list[Line]:
        """Two lines: the progress bar, and metrics with rates."""
        return [self._bar(width, ascii_only), self._values(width)]

    def text(self, width: int) -> str:
        """`lines` without colours."""
        return "\n".join("".join(p.text for p in line).rstrip() for line in self.lines(width))

    def _name(self) -> str:
        return f"epoch {self.epoch + 1}" + (f"/{self._epochs}" if self._epochs else "")

    def _bar(self, width: int, ascii_only: bool) -> Line:
        if self._validation is not None:
            what, (done, total) = "validation", self._validation
        else:
            what, done, total = "step", self.step_in_epoch, self._steps_of_epoch()
        counted = f"{what} {done:,}" + (f"/{total:,}" if total else "")
        left = f"{self._name()}{GAP}{counted}"
        share = min(1.0, done / total) if total else None
        of_epoch, of_run = self.seconds_left()
        of_epoch = None if self._validation is not None else of_epoch
        epoch_text = [f"{duration(of_epoch)} left"] if of_epoch is not None else []
        run_text = [f"run {duration(of_run)} left"] if of_run is not None else []
        percent = [f"{share:4.0%}"] if share is not None else []
        for right in (
            [*percent, ", ".join(epoch_text + run_text)],
            [*percent, *(run_text or epoch_text)],
            percent,
        ):
            text = "".join(f"{GAP}{part}" for part in right if part)
            room = width - len(left) - len(text) - len(GAP)
            if room >= _NARROWEST_BAR or (share is None and room >= -len(GAP)):
                break
        else:
            return [Piece(left, "label")]
        drawn = _bar(min(room, _WIDEST_BAR), share, ascii_only) if share is not None else []
        return [Piece(left, "label"), *([Piece(GAP)] if drawn else []), *drawn, Piece(text)]

    def _values(self, width: int) -> Line:
        if self._waits is not None:
            what, since = self._waits
            waited = self._clock() - since
            return [Piece(what), Piece(f"{GAP}{duration(waited)}" if waited >= 1 else "")]
        if not self._has_advanced:
            return [Piece("compiling the first step")]
        recent = self._recently()
        speed = []
        if recent is not None:
            speed.append([Piece(rate_text(recent.examples / recent.seconds), "value")])
            speed[-1].append(Piece(" examples/s"))
            if not math.isnan(recent.share_waited):
                speed.append([Piece("input wait "), Piece(f"{recent.share_waited:.0%}", "value")])
        named = [
            [Piece(f"{name} "), Piece(number(value), "value")]
            for name, value in self.logs.items()
            if not np.ndim(value)
        ]
        # The loss first, then as many metrics as fit, then the speed.
        for kept in range(len(named), 0, -1):
            more = [[Piece(f"+{len(named) - kept} more")]] if kept < len(named) else []
            parts = [*named[:kept], *more, *speed]
            if _length(parts) <= width:
                return _joined(parts)
        fitting = [named[:1] + speed[:n] for n in (2, 1, 0)]
        return _joined(next((p for p in fitting if _length(p) <= width), named[:1]))

    def summary(self, logs: Mapping[str, Any], width: int) -> list[Line]:
        """The summary of an epoch: all its values, wrapped to the width."""
        now, last = self._clock(), self._readings[-1]
        parts = _named(logs)
        took: list[Line] = [[Piece(duration(now - self._began))]]
        measured = last.since(self._at_begin)
        if measured.seconds > 0:
            rate = rate_text(measured.examples / measured.seconds)
            took.append([Piece(f"{rate} examples/s")])
        longest = len(f"epoch {self._epochs}/{self._epochs}") if self._epochs else 0
        name = self._name().ljust(longest)
        indent = len(name) + len(GAP)
        room = max(width - indent, 1)
        # All epochs of a run look the same, as long as that fits.
        about = list(logs), room
        for each in (parts, _named(logs, digits=3)) if self._about == about else ():
            rows = self._layout.rows(each, took)
            if max(map(_length, rows)) <= room:
                break
        else:
            self._about, self._layout = about, Layout.chosen(parts, took, room)
            rows = self._layout.rows(parts, took)
        lines: list[Line] = [[Piece(name, "label"), Piece(GAP), *_joined(rows[0])]]
        return lines + [[Piece(" " * indent), *_joined(row)] for row in rows[1:]]


def _bar(width: int, share: float, ascii_only: bool) -> Line:
    done, rest = bar(width, share, ascii_only=ascii_only)
    return [Piece(done, "done"), Piece(rest, "rest")]


def _length(parts: Sequence[Line]) -> int:
    return sum(len(p.text) for part in parts for p in part) + len(GAP) * (len(parts) - 1)


def _joined(parts: Sequence[Line]) -> Line:
    line: Line = []
    for part in parts:
        line += [*([Piece(GAP)] if line else []), *part]
    return line


def _named(logs: Mapping[str, Any], digits: int = 4) -> list[Line]:
    return [[Piece(f"{name} "), Piece(number(v, digits), "value")] for name, v in logs.items()]


class Layout(NamedTuple):
    """How many values each line of an epoch's summary has, and how much of the speed follows."""

    counts: list[int]
    num_took: int

    @classmethod
    def chosen(cls, parts: Sequence[Line], took: Sequence[Line], room: int) -> Layout:
        """Leaves room for the values of later epochs, if there is enough for those of this one."""
        usual = [[*p[:-1], Piece(p[-1].text.ljust(_USUAL_VALUE))] for p in parts]
        speed = [*took, [Piece(_USUAL_RATE)]][:2]  # The first epoch may be too short for a rate.
        rows = list(_wrapped(usual, room))
        # The speed does not get a line of its own.
        most = (n for n in range(len(speed), 0, -1) if _length([*rows[-1], *speed[:n]]) <= room)
        return cls([len(row) for row in rows], next(most, 0))

    def rows(self, parts: Sequence[Line], took: Sequence[Line]) -> list[list[Line]]:
        """The lines of a summary."""
        left = iter(parts)
        *rows, last = [list(islice(left, count)) for count in self.counts]
        return [*rows, [*last, *took[: self.num_took]]]


def _wrapped(parts: Sequence[Line], width: int) -> Iterator[list[Line]]:
    row: list[Line] = []
    for part in parts:
        if row and _length([*row, part]) > width:
            yield row
            row = []
        row.append(part)
    yield row
