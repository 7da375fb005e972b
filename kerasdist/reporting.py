"""What a training tells while it runs: plain lines, JSON lines, and rates."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from kerasdist.errors import KerasdistError


def as_number(value: Any) -> Any:
    """A logged value as Python's own type: a float, or lists of them."""
    array = getattr(value, "numpy", lambda: value)()
    return array.tolist() if hasattr(array, "tolist") else array


def as_json(content: Any, indent: int | None = None) -> str:
    """JSON that every reader accepts: null for NaN and infinity, which JSON does not have."""
    return json.dumps(_finite(content), indent=indent, default=str, allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    content = as_number(content)
    return None if isinstance(content, float) and not math.isfinite(content) else content


def as_text(logs: Mapping[str, Any]) -> str:
    """`loss = 0.1234, accuracy = 0.9`."""
    return ", ".join(f"{name} = {_text(value)}" for name, value in logs.items())


def _text(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(_text(item) for item in value)}]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


class Meter:
    """Examples and seconds since the last reading. The clock is an argument, for tests."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter):
        self._clock = clock
        self._last = clock()
        self.total_examples = 0
        self.total_seconds = 0.0
        self._steps = 0

    def restart(self) -> None:
        """Leaves out what happened since the last reading: evaluation, callbacks, compiling."""
        self._last = self._clock()

    def add(self, num_steps: int, num_examples: int) -> None:
        """Takes what happened since the last reading for `num_steps` steps."""
        now = self._clock()
        self.total_seconds += now - self._last
        self._last = now
        self.total_examples += num_examples
        self._steps += num_steps

    def rates(self) -> tuple[float, float]:
        """`(examples a second, seconds a step)` over everything measured; NaN if nothing was."""
        if not self.total_seconds or not self._steps:
            return math.nan, math.nan
        return self.total_examples / self.total_seconds, self.total_seconds / self._steps


class Reporter:
    """Prints progress. `mode` is "lines", "json" or "silent"."""

    def __init__(self, mode: str = "lines", *, stream: TextIO | None = None, now=time.localtime):
        self.mode = mode
        self._stream = stream
        self._now = now

    def _print(self, text: str) -> None:
        # Looked up late: notebooks and tests replace sys.stdout.
        print(text, file=self._stream or sys.stdout, flush=True)

    def _stamp(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S", self._now())

    def say(self, text: str) -> None:
        if self.mode == "lines":
            self._print(text)

    def warn(self, text: str) -> None:
        """Something the user must hear of, whatever the mode: silence is for progress."""
        if self.mode == "lines":
            self._print(text)
        elif self.mode == "json":
            self.event("warning", message=text)
        else:
            print(f"kerasdist: {text}", file=sys.stderr, flush=True)

    def event(self, kind: str, **fields: Any) -> None:
        if self.mode == "json":
            self._print(as_json({"event": kind, **fields}))

    def step(self, step: int, loss: float, rate: float, seconds: float) -> None:
        if self.mode == "json":
            self.event(
                "step", step=step, loss=loss, examples_per_second=rate, seconds_per_step=seconds
            )
        elif self.mode == "lines":
            # Two decimals as ever, but no small loss as 0.00.
            value = f"{loss:.2f}" if abs(loss) >= 0.1 else f"{loss:.3g}"
            speed = f"{rate:.1f} examples/sec; {seconds:.3f} sec/batch"
            if math.isnan(rate):
                speed = "the first step compiles: not timed"
            self._print(f"{self._stamp()}: step {step}, loss = {value} ({speed})")

    def epoch(self, epoch: int, epochs: int | None, logs: Mapping[str, Any]) -> None:
        if self.mode == "json":
            self.event("epoch", epoch=epoch + 1, **logs)
        elif self.mode == "lines":
            of = f"/{epochs}" if epochs else ""
            self._print(f"{self._stamp()}: epoch {epoch + 1}{of}, {as_text(logs)}")


def mode_of(progress: Any) -> str:
    """`progress=` of `fit` as a mode."""
    modes = {False: "silent", True: "lines", "auto": "lines", "json": "json"}
    try:
        return modes[progress]
    except (KeyError, TypeError):
        raise KerasdistError(
            f"Received `progress={progress!r}`. Expected 'auto', 'json' or False. Use 'auto' for a "
            "line each epoch, False for silence."
        ) from None
