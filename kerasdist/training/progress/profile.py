"""`fit --profile`: a trace of a few steps for TensorBoard, and where the time of a step goes.

Each moment counts once: as compute if an operation runs, otherwise as all-reduce if a reduction
runs, otherwise as input if the step waits for a batch, otherwise as host. The four parts add up to
the whole step, and work hidden behind compute costs nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tensorflow as tf

from kerasdist.devices.private_tensorflow import read_trace
from kerasdist.engine.sums import ALL_REDUCE
from kerasdist.errors import first_line
from kerasdist.training.progress.reporter import Reporter

CALL = "kerasdist_steps"
# Enough for an average, and few enough for a browser to show the trace.
FEWEST_STEPS, FEWEST_CALLS, MOST_STEPS_PER_CALL = 10, 2, 500
_OPERATION = re.compile(r"[^:]+:[^: ]+")
_WAITS_FOR_INPUT = "IteratorGetNext"
_RUNS_XLA = "CpuExecutable::Execute"
_REDUCTIONS = re.compile(rf"/{ALL_REDUCE}|nccl|Collective", re.I)

Interval = tuple[int, int]


@dataclass(frozen=True)
class Split:
    """Average seconds per step by part, and the number of steps measured."""

    steps: int
    input: float
    compute: float
    all_reduce: float
    host: float

    @property
    def total(self) -> float:
        return self.input + self.compute + self.all_reduce + self.host

    def parts(self) -> dict[str, float]:
        """Seconds by name."""
        return {name: value for name, value in asdict(self).items() if name != "steps"}

    def lines(self) -> list[str]:
        """Four lines: the part, its time, and its share of the step."""
        return [
            f"{name.replace('_', '-'):<10}  {1e3 * seconds:9.3f} ms per step"
            f"  {seconds / self.total:6.1%}"
            for name, seconds in self.parts().items()
        ]


class Profile:
    """Traces a few steps of one epoch after compilation, once, into a folder, if there is one.

    If tracing fails, it warns and the training continues.
    """

    def __init__(self, folder: Path | None, reporter: Reporter):
        self._folder = folder
        self._reporter = reporter
        self._is_waiting = folder is not None
        self._call: Any = None
        self._steps = self._calls = 0
        self._is_tracing = False
        self.split: Split | None = None

    @property
    def most_steps_per_call(self) -> int | None:
        return MOST_STEPS_PER_CALL if self._is_waiting or self._is_tracing else None

    def begin_call(self, *, is_steady: bool) -> None:
        """Before a call. `is_steady`: the call neither compiles nor writes a summary."""
        if self._is_tracing and not is_steady:
            self._stop()
        if self._is_waiting and is_steady:
            self._is_waiting = False
            try:
                tf.profiler.experimental.start(str(self._folder))
                self._is_tracing = True
            except Exception as error:  # noqa: BLE001 - the training continues
                self._fail(error)
        if self._is_tracing:
            self._call = tf.profiler.experimental.Trace(CALL, step_num=self._calls, _r=1)
            self._call.__enter__()

    def end_call(self, num_steps: int) -> None:
        """After the call."""
        if self._call is None:
            return
        self._call.__exit__(None, None, None)
        self._call = None
        self._steps += num_steps
        self._calls += 1
        if self._steps >= FEWEST_STEPS and self._calls >= FEWEST_CALLS:
            self._stop()

    def end_epoch(self) -> None:
        """After the steps of an epoch: what comes before the next step is no part of any step."""
        if self._is_tracing:
            self._stop()

    def close(self) -> None:
        """At the end of the training, which can come before the trace is complete."""
        if self._call is not None:  # A step raised.
            self._call.__exit__(None, None, None)
            self._call = None
        if self._is_tracing:
            self._stop()
        elif self._is_waiting:
            self._is_waiting = False
            self._reporter.warn(
                "no profile: the run ended before a step could be timed. Train a few more steps."
            )

    def _stop(self) -> None:
        self._is_tracing = False
        try:
            tf.profiler.experimental.stop()
            if self._steps and self._folder is not None:
                newest = max(
                    self._folder.glob("plugins/profile/*/*.xplane.pb"),
                    key=lambda path: path.stat().st_mtime,
                )
                self.split = split(read_trace(newest.read_bytes()), self._steps)
                self._tell(newest)
        except Exception as error:  # noqa: BLE001 - the training continues
            self._fail(error)

    def _tell(self, trace: Path) -> None:
        if self.split is None:
            return
        lines = [
            f"profile of {self._steps:,} steps ({1e3 * self.split.total:.3f} ms each, slower "
            "while traced):",
            *(f"  {line}" for line in self.split.lines()),
            f"  the trace is {trace}: `pip install xprof`, `tensorboard --logdir {self._folder}`",
        ]
        self._reporter.say("\n".join(lines))
        self._reporter.event("profile", trace=str(trace), **asdict(self.split))

    def _fail(self, error: Exception) -> None:
        self._reporter.warn(f"no profile: {first_line(error)}. The training continues.")


def split(space: Any, num_steps: int) -> Split:
    """Splits the time of the traced calls into parts.

    Args:
        space: The profiler's `XSpace`.
        num_steps: How many steps the calls ran.
    """
    compute: list[Interval] = []
    exchange: list[Interval] = []
    inputs: list[Interval] = []
    calls: list[Interval] = []
    on_gpu = any(_is_gpu(plane) for plane in space.planes)
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                first = line.timestamp_ns * 1000 + event.offset_ps
                interval = (first, first + event.duration_ps)
                if name.startswith(CALL):
                    calls.append(interval)
                elif name.startswith(_WAITS_FOR_INPUT) and "::" in name:
                    inputs.append(interval)
                elif _is_gpu(plane) or (not on_gpu and _is_operation(name, line.name)):
                    (exchange if _REDUCTIONS.search(name) else compute).append(interval)
    if not calls:
        raise ValueError("the trace has no steps")
    window = (min(first for first, _ in calls), max(end for _, end in calls))
    seconds = []
    covered: list[Interval] = []
    before = 0
    for kind in (compute, exchange, inputs):
        covered = union([*covered, *within(kind, window)])
        length = sum(end - first for first, end in covered)
        seconds.append((length - before) / 1e12 / num_steps)
        before = length
    host = (window[1] - window[0] - before) / 1e12 / num_steps
    return Split(num_steps, seconds[2], seconds[0], seconds[1], host)


def _is_gpu(plane: Any) -> bool:
    return plane.name.startswith("/device:GPU")


def _is_operation(name: str, thread: str) -> bool:
    """Whether an event is work of the step, not of the input pipeline. XLA runs many operations."""
    is_one = _OPERATION.fullmatch(name) is not None or name.startswith(_RUNS_XLA)
    return is_one and not thread.startswith("tf_data")


def within(intervals: Iterable[Interval], window: Interval) -> list[Interval]:
    """The parts of intervals that lie in a window.

    Example:
        >>> within([(0, 4), (8, 9)], (2, 6))
        [(2, 4)]
    """
    cut = ((max(first, window[0]), min(end, window[1])) for first, end in intervals)
    return [(first, end) for first, end in cut if first < end]


def union(intervals: Sequence[Interval]) -> list[Interval]:
    """Merges intervals that overlap.

    Example:
        >>> union([(5, 6), (0, 2), (1, 3)])
        [(0, 3), (5, 6)]
    """
    joined: list[Interval] = []
    for first, end in sorted(intervals):
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((first, end))
    return joined
