"""The live display of a training in a terminal or notebook.

It draws only between two calls of the compiled loop, and only as often as that costs little time.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from kerasdist.phases.keyboard import Keyboard
from kerasdist.training.progress.bar import Line, Piece, Progress
from kerasdist.training.progress.meter import Reading

# Drawing and reading metrics may each take this share of the time.
SHARE = 0.003
LEAST_SECONDS, MOST_SECONDS = 0.1, 2.0
# A display that nothing changes is drawn this often.
SECONDS_BETWEEN_TICKS = 1.0
# A validation of this many seconds is announced before it starts.
_LONG_VALIDATION = 0.5
_NOTEBOOK_WIDTH = 100
_STYLES = {"label": "bold", "value": "bold", "done": "cyan", "rest": "dim", "warning": "yellow"}


class Budget:
    """Limits how often something happens, so that it takes at most `SHARE` of the time."""

    def __init__(self, clock: Callable[[], float], most_seconds: float):
        self._clock, self._most = clock, most_seconds
        self._next = clock()
        self._is_first = True

    def is_due(self) -> bool:
        return self._clock() >= self._next

    @contextlib.contextmanager
    def spending(self) -> Iterator[None]:
        began = self._clock()
        yield
        now = self._clock()
        # The first time takes much longer than the others.
        cost = 0.0 if self._is_first else now - began
        self._is_first = False
        self._next = now + min(max(cost / SHARE, LEAST_SECONDS), self._most)


class Screen(Protocol):
    """Where a display is drawn."""

    @property
    def width(self) -> int: ...

    ascii_only: bool

    def begin(self, before_print: Callable[[], None]) -> None: ...
    def draw(self, lines: Sequence[Line]) -> None: ...
    def print(self, lines: Sequence[Line]) -> None: ...
    def stop(self) -> None: ...


class _Console(Console):
    before_print: Callable[[], None] | None = None

    def print(self, *objects: Any, **options: Any) -> None:
        # Other code prints here too: epochs that ended before come first.
        if self.before_print is not None:
            self.before_print()
        super().print(*objects, **options)

    def show_cursor(self, show: bool = True) -> bool:
        # A killed process, for example by a second Ctrl-C, could not show the cursor again.
        return False


class Terminal:
    """Redraws lines at the bottom of a terminal. Other output goes above them."""

    def __init__(self, stream: TextIO | None = None, **options: Any):
        self._console = _Console(file=stream, highlight=False, **options)
        self.ascii_only = not self._console.encoding.lower().startswith("utf")
        is_ours = stream is None
        self._keyboard = Keyboard(_file_of(self._console.file))
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=is_ours,  # Other output goes above the lines.
            redirect_stderr=is_ours,
        )

    def begin(self, before_print: Callable[[], None]) -> None:
        """`before_print` is called before anything is printed."""
        self._console.before_print = before_print
        self._live.start()

    @property
    def width(self) -> int:
        # Some terminals wrap at the last column.
        return self._console.width - 1

    def draw(self, lines: Sequence[Line]) -> None:
        # The cursor stays on a line of its own, for the shell in case the process is killed.
        self._keyboard.silence()
        texts = [_styled(line, no_wrap=True, overflow="ellipsis") for line in lines]
        self._live.update(Group(*texts, Text()), refresh=True)

    def print(self, lines: Sequence[Line]) -> None:
        # The terminal wraps, so that text copied from it stays in one piece.
        self._console.print(Text("\n").join(_styled(line) for line in lines), soft_wrap=True)

    def stop(self) -> None:
        self._live.stop()
        self._keyboard.restore()


class Notebook:
    """One output per epoch, updated in place, which becomes the summary of the epoch.

    Epochs shorter than a refresh share one output. It uses plain Jupyter displays, which need no
    widgets and are saved with the notebook.
    """

    ascii_only = False
    width = _NOTEBOOK_WIDTH

    def __init__(self) -> None:
        self._handle: Any = None

    @property
    def is_drawn(self) -> bool:
        """Whether an unfinished display is drawn."""
        return self._handle is not None

    def begin(self, before_print: Callable[[], None]) -> None:
        pass  # Other output has its own place in a notebook.

    def draw(self, lines: Sequence[Line]) -> None:
        self._show(_plain(lines))

    def _show(self, text: str) -> None:
        from IPython.display import display

        show: Callable[..., Any] = display
        content = {"text/plain": text}
        if self._handle is None:
            self._handle = show(content, raw=True, display_id=True)
        else:
            self._handle.update(content, raw=True)

    def print(self, lines: Sequence[Line]) -> None:
        print(_plain(lines), flush=True)

    def finish(self, lines: Sequence[Line]) -> None:
        """Replaces the display by its final lines."""
        if self._handle is None:
            self.print(lines)
        else:
            self._show(_plain(lines))
            self._handle = None

    def stop(self) -> None:
        self._handle = None


class Display:
    """Shows the progress of one training on a screen."""

    def __init__(
        self,
        screen: Screen,
        progress: Progress,
        read_metrics: Callable[[], Mapping[str, Any]],
        *,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self._screen, self._progress, self._read_metrics = screen, progress, read_metrics
        self._clock = clock
        self._drawing = Budget(clock, MOST_SECONDS)
        self._reading = Budget(clock, 60.0)
        self._ended: list[list[Line]] = []
        self._validated: float | None = None
        self._validation_began: float | None = None
        self._drawn_at = clock()
        # Warnings can come from the thread that saves checkpoints.
        self._lock = threading.RLock()
        screen.begin(self._print_ended)

    def begin_epoch(self, epoch: int, step: int, step_in_epoch: int) -> None:
        self._progress.begin_epoch(epoch, step, step_in_epoch)
        self._draw_if_due()

    def advance(self, step: int, step_in_epoch: int, reading: Reading) -> None:
        self._progress.advance(step, step_in_epoch, reading)
        if self._drawing.is_due():
            if self._reading.is_due():
                with self._reading.spending():
                    self._progress.logs = self._read_metrics()
            self._draw_if_due()

    def wait(self, what: str | None) -> None:
        """Says what a call that takes long is doing. None: it is over."""
        self._progress.wait(what)
        if what is not None:
            self._draw_if_due(now=True)

    def tick(self) -> None:
        """Draws, if nothing was drawn for a while: the seconds show that something happens."""
        with self._lock:
            if self._clock() - self._drawn_at >= SECONDS_BETWEEN_TICKS:
                self._draw()

    @contextlib.contextmanager
    def ticking(self) -> Iterator[None]:
        """A thread ticks during the block. In a notebook, where the seconds do not show, none."""
        if isinstance(self._screen, Notebook):
            yield
            return
        is_over = threading.Event()

        def run() -> None:
            while not is_over.wait(SECONDS_BETWEEN_TICKS):
                self.tick()

        thread = threading.Thread(target=run, name="kerasdist-ticks", daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def metrics(self, logs: Mapping[str, Any]) -> None:
        """Takes metrics that were read elsewhere."""
        self._progress.logs = logs

    def validate(self, done: int, total: int | None) -> None:
        self._progress.validate(done, total)
        is_first = self._validated is None
        self._progress.wait("compiling the validation" if is_first and done == 0 else None)
        if done == 0:
            self._validation_began = self._clock()
        # Before a long wait, say what the wait is for.
        is_long = self._validated is None or self._validated > _LONG_VALIDATION
        self._draw_if_due(now=done == 0 and is_long)

    def end_epoch(self, logs: Mapping[str, Any]) -> None:
        if self._validation_began is not None:
            self._validated = self._clock() - self._validation_began
            self._validation_began = None
        self._progress.logs = logs
        self._ended.append(self._progress.summary(logs, self._screen.width))
        self._progress.end_epoch()
        # A notebook draws again only when the next epoch starts: after the last epoch, an extra
        # display would remain.
        self._draw_if_due(is_between=True)

    def print(self, text: str, kind: str = "") -> None:
        """Prints above the display."""
        with self._lock:
            self._print_ended()
            self._screen.print([[Piece(line, kind)] for line in text.split("\n")])

    def stop(self) -> None:
        with self._lock:
            self._print_ended()
            if isinstance(self._screen, Notebook) and self._screen.is_drawn:
                # The training was interrupted: the notebook keeps how far it was.
                self._progress.stop()
                self._draw()
            self._screen.stop()

    def _draw(self) -> None:
        lines = self._progress.lines(self._screen.width, ascii_only=self._screen.ascii_only)
        self._screen.draw(lines)
        self._drawn_at = self._clock()

    def _draw_if_due(self, *, now: bool = False, is_between: bool = False) -> None:
        if now or self._drawing.is_due():
            with self._lock, self._drawing.spending():
                self._print_ended()
                if not (is_between and isinstance(self._screen, Notebook)):
                    self._draw()

    def _print_ended(self) -> None:
        """Prints the summaries of ended epochs, together if epochs are shorter than a refresh."""
        with self._lock:
            lines = [line for summary in self._ended for line in summary]
            self._ended = []
            if lines and isinstance(self._screen, Notebook):
                self._screen.finish(lines)
            elif lines:
                self._screen.print(lines)


def _file_of(stream: Any) -> int | None:
    """The file descriptor of a stream; None if there is none, as in tests."""
    try:
        return int(stream.fileno())
    except (AttributeError, OSError, ValueError):
        return None


def _styled(line: Line, **options: Any) -> Text:
    text = Text(**options)
    for piece in line:
        text.append(piece.text, _STYLES.get(piece.kind))
    return text


def _plain(lines: Sequence[Line]) -> str:
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in lines)
