"""What a training prints while it runs: plain lines, JSON lines, or a live display."""

from __future__ import annotations

import contextlib
import errno
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TextIO

from kerasdist.errors import KerasdistError
from kerasdist.phases import prose
from kerasdist.phases.displays import TerminalLine, can_redraw, shown_on
from kerasdist.phases.phase import Phase, is_shown, not_shown, phase
from kerasdist.phases.text import wrapped
from kerasdist.runs.atomic import as_json
from kerasdist.training.progress.bar import Progress, number
from kerasdist.training.progress.meter import Meter


def as_text(logs: Mapping[str, Any]) -> str:
    """`loss = 0.1234, accuracy = 0.9`."""
    return ", ".join(f"{name} = {number(value)}" for name, value in logs.items())


# A log of short steps has so many seconds between their lines, unless the user chose the steps.
SECONDS_BETWEEN_STEPS = 1.0


# Writing fails with these if a pipe has no reader, or if the terminal was closed.
_NO_READER = (errno.EPIPE, errno.EIO)


@contextlib.contextmanager
def _unless_gone() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in _NO_READER:
            raise


class Reporter:
    """Prints progress. `mode` is "lines", "json", "silent", "live" or "notebook".

    The last two show a display during `training`, and print lines before and after it. Of steps
    that end within `seconds_between_steps` of the last line of one, "lines" prints none.
    """

    def __init__(
        self,
        mode: str = "lines",
        *,
        stream: TextIO | None = None,
        now: Callable[[], time.struct_time] = time.localtime,
        seconds_between_steps: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ):
        self.mode = mode
        self._stream = stream
        self._now = now
        self._seconds_between_steps, self._clock = seconds_between_steps, clock
        self._next_step_line = -math.inf
        self._display: Any = None
        self._phase: Phase | None = None
        # Called once if nobody reads the output any more. Without it, to print is an error then.
        self.on_lost_reader: Callable[[], None] | None = None
        self._has_reader = True
        # Of the facts said so far: those that follow are aligned with them.
        self.title_width = 0

    @property
    def _is_for_people(self) -> bool:
        return self.mode not in ("json", "silent")

    def _print(self, text: str, kind: str = "") -> None:
        if not self._has_reader:
            return
        try:
            if self._display is not None:
                self._display.print(text, kind)
            else:
                # Looked up at each call, because notebooks and tests replace sys.stdout.
                print(text, file=self._stream or sys.stdout, flush=True)
        except OSError as error:
            if self.on_lost_reader is None or error.errno not in _NO_READER:
                raise
            self._has_reader = False
            self.on_lost_reader()

    def _stamp(self) -> str:
        return time.strftime("%Y-%m-%d %H:%M:%S", self._now())

    @contextlib.contextmanager
    def training(
        self,
        *,
        epochs: int | None,
        steps: int | None,
        epoch_steps: int | None,
        read_metrics: Callable[[], Mapping[str, Any]],
    ) -> Iterator[None]:
        """Shows a display, in the modes that have one. It is gone afterwards, whatever happens."""
        if self.mode not in ("live", "notebook"):
            with self._counting(epochs, steps, epoch_steps):
                yield
            return
        from kerasdist.training.progress import screens  # rich takes its time

        screen: screens.Screen
        screen = screens.Notebook() if self.mode == "notebook" else screens.Terminal(self._stream)
        progress = Progress(epochs, steps, epoch_steps)
        with not_shown():  # Both would draw on the same line.
            self._display = screens.Display(screen, progress, read_metrics)
            try:
                with self._display.ticking():
                    yield
            finally:
                shown, self._display = self._display, None
                with _unless_gone():
                    shown.stop()

    @contextlib.contextmanager
    def _counting(
        self, epochs: int | None, steps: int | None, epoch_steps: int | None
    ) -> Iterator[None]:
        """A silent training is a phase of the command that trains, for example to compare."""
        if self.mode != "silent":
            yield
            return
        total = steps or (epochs * epoch_steps if epochs and epoch_steps else None)
        with phase("training", total, unit="step") as self._phase:
            yield
        self._phase = None

    def showing_phases(self) -> contextlib.AbstractContextManager[None]:
        """Shows what a program's training does before and after the display, on a terminal."""
        stream = self._stream or sys.stdout
        if self.mode != "live" or is_shown() or not can_redraw(stream):
            return contextlib.nullcontext()
        is_utf = (getattr(stream, "encoding", None) or "").lower().startswith("utf")
        return shown_on(TerminalLine(stream.fileno(), ascii_only=not is_utf))

    @contextlib.contextmanager
    def waiting(self, what: str) -> Iterator[None]:
        """Says that the block takes a while: in the display, or as a phase."""
        if self._display is None:
            with phase(what):
                yield
            return
        self._display.wait(what)
        try:
            yield
        finally:
            if self._display is not None:
                self._display.wait(None)

    def begin_epoch(self, epoch: int, step: int, step_in_epoch: int) -> None:
        if self._display is not None:
            self._display.begin_epoch(epoch, step, step_in_epoch)

    def advance(self, step: int, step_in_epoch: int, meter: Meter) -> None:
        """After each call of the compiled loop."""
        if self._display is not None:
            self._display.advance(step, step_in_epoch, meter.reading())
        elif self._phase is not None:
            self._phase.reached(step)

    def metrics(self, logs: Mapping[str, Any]) -> None:
        """The metrics of an epoch, after its last step."""
        if self._display is not None:
            self._display.metrics(logs)

    def validation(self, done: int, total: int | None) -> None:
        """Progress of the validation; `done` is 0 at its start."""
        if self._display is not None:
            self._display.validate(done, total)

    @property
    def width(self) -> int | None:
        """How many columns the terminal has; None without one."""
        return shutil.get_terminal_size().columns if self.mode == "live" else None

    @property
    def has_display(self) -> bool:
        return self._display is not None

    def say(self, text: str) -> None:
        if self._is_for_people:
            self._print(self._fitted(text))

    def _fitted(self, text: str) -> str:
        """A terminal gets lines broken between words."""
        return text if self.width is None else wrapped(text, self.width)

    def warn(self, text: str) -> None:
        """Prints a warning in every mode: only progress can be silenced."""
        if self._is_for_people:
            self._print(self._fitted(text), "warning")
        elif self.mode == "json":
            self.event("warning", message=text)
        else:
            prose.say(f"kerasdist: {text}", sys.stderr)

    def event(self, kind: str, **fields: Any) -> None:
        if self.mode == "json":
            self._print(as_json({"event": kind, **fields}))

    def step(self, step: int, loss: float, rate: float, seconds: float) -> None:
        if self.mode == "json":
            self.event(
                "step", step=step, loss=loss, examples_per_second=rate, seconds_per_step=seconds
            )
        elif self.mode == "lines" and self._clock() >= self._next_step_line:
            self._next_step_line = self._clock() + self._seconds_between_steps
            # Two decimals, but a small loss is not shown as 0.00.
            value = f"{loss:.2f}" if abs(loss) >= 0.1 else f"{loss:.3g}"
            speed = f"{rate:.1f} examples/sec; {seconds:.3f} sec/batch"
            if math.isnan(rate):
                speed = "the first step compiles: not timed"
            self._print(f"{self._stamp()}: step {step}, loss = {value} ({speed})")

    def epoch(self, epoch: int, epochs: int | None, logs: Mapping[str, Any]) -> None:
        if self._display is not None:
            self._display.end_epoch(logs)
        elif self.mode == "json":
            self.event("epoch", epoch=epoch + 1, **logs)
        elif self._is_for_people:
            of = f"/{epochs}" if epochs else ""
            self._print(f"{self._stamp()}: epoch {epoch + 1}{of}, {as_text(logs)}")


def is_notebook() -> bool:
    """Whether this runs in a notebook that can show displays."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    # IPython in a terminal has no kernel.
    return getattr(shell, "kernel", None) is not None


def mode_of(progress: Any) -> str:
    """The mode for the argument `progress` of `fit`."""
    modes = {False: "silent", True: "auto", "auto": "auto", "lines": "lines", "json": "json"}
    try:
        mode = modes[progress]
    except (KeyError, TypeError):
        raise KerasdistError(
            f"Received `progress={progress!r}`. Expected 'auto', 'lines', 'json' or False. Use "
            "'auto' for a live display (lines if there is no terminal), or False for silence."
        ) from None
    if mode != "auto":
        return mode
    return "notebook" if is_notebook() else "live" if can_redraw(sys.stdout) else "lines"
