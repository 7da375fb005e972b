"""Reads metrics.jsonl while a run appends to it: each byte once, in bounded memory."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from kerasdist.reports.board.curve import Curve
from kerasdist.reports.metric_plots import Values
from kerasdist.runs.file_names import METRICS
from kerasdist.runs.metrics_log import (
    EPOCH,
    NOT_METRICS,
    STEP,
    Line,
    count,
    finite,
)
from kerasdist.runs.results import direction

_BLOCK = 1 << 20
# Of a log that is this much longer than what was read, only some of the logged steps are parsed.
_WHOLE = 4 << 20
# How many bytes before the current place must still be the same. Else the log was rewritten.
_MARK = 64
_IS_EPOCH = b'"epoch"'


class LogReader:
    """What a board shows of a run's log.

    Attributes:
        every: Of every so many logged steps, one was parsed; 1 if all were.
        num_pending: Bytes that are not read yet.
    """

    def __init__(self, run: Path):
        self._path = run / METRICS
        self._restart()

    def _restart(self) -> None:
        self._file: tuple[int, int] | None = None
        self._place, self._mark, self._pending_line = 0, b"", b""
        self._curves: dict[tuple[str, str], Curve] = {}
        self._best: dict[str, tuple[float, Line]] = {}
        self._last: dict[str, Line] = {}
        self._with_rate: Line | None = None
        self._known: direction.Known = {}
        self.every, self.num_pending = 1, 0

    def read(self, most_bytes: int) -> int:
        """Reads on, and returns how many bytes were read."""
        try:
            with open(self._path, "rb") as file:
                status = os.fstat(file.fileno())
                if self._is_rewritten(file, status):
                    self._restart()
                self._file = (status.st_dev, status.st_ino)
                return self._read(file, status.st_size, most_bytes)
        except OSError:  # There is no log yet, or the folder is gone.
            self._restart()
            return 0

    def _is_rewritten(self, file: Any, status: os.stat_result) -> bool:
        """Whether what was read is not there any more: a resumed run removes what it repeats."""
        if self._file is None:
            return False
        if self._file != (status.st_dev, status.st_ino) or status.st_size < self._place:
            return True
        file.seek(self._place - len(self._mark))
        return bool(file.read(len(self._mark)) != self._mark)

    def _read(self, file: Any, size: int, most_bytes: int) -> int:
        begin = self._place
        if not begin:
            self._known = direction.of_run(self._path.parent)
        file.seek(begin)
        while self._place < size and self._place - begin < most_bytes:
            left = size - self._place
            block = file.read(min(_BLOCK, left))
            end = block.rfind(b"\n") + 1
            if not end:
                if len(block) < _BLOCK:  # Half a line: the rest comes later.
                    break
                end = len(block)  # No line of ours is so long.
            every = max(1, left // _WHOLE)
            self.every = max(self.every, every)
            self._take(block[:end].split(b"\n"), every)
            self._place += end
            file.seek(self._place)
            self._mark = block[max(0, end - _MARK) : end]
        self.num_pending = size - self._place
        return self._place - begin

    def _take(self, texts: list[bytes], every: int) -> None:
        if every > 1:
            # Parsing takes most of the time, so lines are chosen before it.
            texts = [t for i, t in enumerate(texts) if i % every == 0 or _IS_EPOCH in t]
        for line in _parsed(texts):
            self._add(line)

    def _add(self, line: Line) -> None:
        kind = line.get("kind")
        if kind not in (STEP, EPOCH):
            return
        step = float(line["step"])
        self._last[kind] = line
        if kind == STEP and finite(line.get("examples_per_second")) is not None:
            self._with_rate = line
        for name, value in line.items():
            if name in ("kind", "step", "epoch") or isinstance(value, (str, list, dict, bool)):
                continue
            number = finite(value)
            curve = self._curves.get((kind, name))
            if curve is None:
                curve = self._curves[kind, name] = Curve()
            curve.add(step, number)
            # As in `metrics_log.best`: in an epoch whose loss is not finite, nothing was trained.
            can_be_best = kind == EPOCH and line.get("loss", 0.0) is not None
            if can_be_best and name not in NOT_METRICS and number is not None:
                best = self._best.get(name)
                sign = 1 if direction.is_higher_better(name, self._known) else -1
                if best is None or sign * number > sign * best[0]:
                    self._best[name] = (number, line)

    @property
    def epochs(self) -> tuple[Line, ...]:
        """The few epochs that matter: the best of each metric, and the last one."""
        last = self._last.get(EPOCH)
        if last is None:
            return ()
        # The names of all metrics, in the order in which they were first logged, come first.
        names: dict[str, None] = {n: None for kind, n in self._curves if kind == EPOCH}
        chosen = {id(line): line for _, line in self._best.values()}
        chosen.pop(id(last), None)
        ordered = [*sorted(chosen.values(), key=_epoch_of), last]
        first = {"kind": EPOCH, "step": ordered[0]["step"], "epoch": ordered[0].get("epoch")}
        return ({**first, **dict.fromkeys(names), **ordered[0]}, *ordered[1:])

    @property
    def steps(self) -> tuple[Line, ...]:
        """The last logged step, after the last one with a rate."""
        found = [self._with_rate, self._last.get(STEP)]
        return tuple(line for line in found if line is not None)

    def by_epoch(self, name: str) -> Values:
        """A curve of epochs, as `metric_plots.Logged` has it."""
        return self._points(EPOCH, name)

    def by_step(self, name: str) -> Values:
        """A curve of logged steps, as `metric_plots.Logged` has it."""
        return self._points(STEP, name)

    def _points(self, kind: str, name: str) -> Values:
        curve = self._curves.get((kind, name))
        return ([], []) if curve is None else curve.points()


def _epoch_of(line: Line) -> int:
    return count(line.get("epoch")) or 0


def _parsed(texts: Iterable[bytes]) -> list[Line]:
    """The objects in some lines. All at once, which is faster, unless one is broken."""
    texts = [text for text in texts if text]
    try:
        found = json.loads(b"[" + b",".join(texts) + b"]")
        if len(found) != len(texts):  # A line with a comma in it: not one of ours.
            raise ValueError
    except (ValueError, RecursionError):
        found = []
        for text in texts:
            try:
                found.append(json.loads(text))
            except (ValueError, RecursionError):
                continue
    return [
        line for line in found if isinstance(line, dict) and count(line.get("step")) is not None
    ]
