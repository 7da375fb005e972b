"""A live display of a training: on a terminal, and in a notebook.

Nothing is drawn but between two calls of the compiled loop, and only as often as it costs little.
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

from kerasdist.training.progress.bar import Line, Piece, Progress
from kerasdist.training.progress.meter import Reading

# Of the time that passes, drawing and reading metrics may each take this share.
SHARE = 0.003
LEAST_SECONDS, MOST_SECONDS = 0.1, 2.0
# A pause that is worth a display of its own.
_LONG_VALIDATION = 0.5
_NOTEBOOK_WIDTH = 100
_STYLES = {"label": "bold", "value": "bold", "done": "cyan", "rest": "dim", "warning": "yellow"}


class Budget:
    """Lets something happen again when it has cost only `SHARE` of the time since."""

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
        # The first time takes much longer than all others.
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
        # Also what others print comes here, and after what ended before it.
        if self.before_print is not None:
            self.before_print()
        super().print(*objects, **options)

    def show_cursor(self, show: bool = True) -> bool:
        # A process that is killed, by a second Ctrl-C for example, could not bring it back.
        return False


class Terminal:
    """Lines at the bottom of a terminal that are drawn again and again; others go above them."""

    def __init__(self, stream: TextIO | None = None, **options: Any):
        self._console = _Console(file=stream, highlight=False, **options)
        self.ascii_only = not self._console.encoding.lower().startswith("utf")
        is_ours = stream is None
        self._live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=is_ours,  # What anybody prints goes above the lines.
            redirect_stderr=is_ours,
        )

    def begin(self, before_print: Callable[[], None]) -> None:
        """`before_print` is called before anything is printed."""
        self._console.before_print = before_print
        self._live.start()

    @property
    def width(self) -> int:
        # The last column is left free: some terminals wrap there.
        return self._console.width - 1

    def draw(self, lines: Sequence[Line]) -> None:
        # The cursor rests on a line of its own: for the shell, should the process be killed.
        texts = [_styled(line, no_wrap=True, overflow="ellipsis") for line in lines]
        self._live.update(Group(*texts, Text()), refresh=True)

    def print(self, lines: Sequence[Line]) -> None:
        # Not cut into lines here: what is copied from the terminal stays in one piece.
        self._console.print(Text("\n").join(_styled(line) for line in lines), soft_wrap=True)

    def stop(self) -> None:
        self._live.stop()


class Notebook:
    """One output an epoch, updated in place; it ends as the epoch's summary.

    Epochs that are shorter than a refresh share one. With Jupyter's own displays, which need no
    widgets and are saved with the notebook.
    """

    ascii_only = False
    width = _NOTEBOOK_WIDTH

    def __init__(self) -> None:
        self._handle: Any = None

    @property
    def is_drawn(self) -> bool:
        """Whether something is drawn that has not been finished."""
        return self._handle is not None

    def begin(self, before_print: Callable[[], None]) -> None:
        pass  # What is printed elsewhere has an output of its own.

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
        """Puts lines in the place of what was drawn, for good."""
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
        # Warnings may come from the thread that saves.
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

    def metrics(self, logs: Mapping[str, Any]) -> None:
        """Metrics that somebody else has read."""
        self._progress.logs = logs

    def validate(self, done: int, total: int | None) -> None:
        self._progress.validate(done, total)
        if done == 0:
            self._validation_began = self._clock()
        # Before a long wait the display must say what is waited for.
        is_long = self._validated is None or self._validated > _LONG_VALIDATION
        self._draw_if_due(now=done == 0 and is_long)

    def end_epoch(self, logs: Mapping[str, Any]) -> None:
        if self._validation_began is not None:
            self._validated = self._clock() - self._validation_began
            self._validation_began = None
        self._progress.logs = logs
        self._ended.append(self._progress.summary(logs, self._screen.width))
        self._progress.end_epoch()
        # In a notebook nothing is drawn until the next epoch begins: it would be left after the
        # last one.
        self._draw_if_due(is_between=True)

    def print(self, text: str, kind: str = "") -> None:
        """Prints above what is drawn."""
        with self._lock:
            self._print_ended()
            self._screen.print([[Piece(line, kind)] for line in text.split("\n")])

    def stop(self) -> None:
        with self._lock:
            self._print_ended()
            if isinstance(self._screen, Notebook) and self._screen.is_drawn:
                # A training that was interrupted: where it stood is saved with the notebook.
                self._progress.stop()
                self._draw()
            self._screen.stop()

    def _draw(self) -> None:
        lines = self._progress.lines(self._screen.width, ascii_only=self._screen.ascii_only)
        self._screen.draw(lines)

    def _draw_if_due(self, *, now: bool = False, is_between: bool = False) -> None:
        if now or self._drawing.is_due():
            with self._lock, self._drawing.spending():
                self._print_ended()
                if not (is_between and isinstance(self._screen, Notebook)):
                    self._draw()

    def _print_ended(self) -> None:
        """The summaries of epochs: together, where epochs are shorter than a refresh."""
        with self._lock:
            lines = [line for summary in self._ended for line in summary]
            self._ended = []
            if lines and isinstance(self._screen, Notebook):
                self._screen.finish(lines)
            elif lines:
                self._screen.print(lines)


def _styled(line: Line, **options: Any) -> Text:
    text = Text(**options)
    for piece in line:
        text.append(piece.text, _STYLES.get(piece.kind))
    return text


def _plain(lines: Sequence[Line]) -> str:
    return "\n".join("".join(piece.text for piece in line).rstrip() for line in lines)
