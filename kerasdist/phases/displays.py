"""Shows phases: one line of a terminal that is redrawn, or plain lines elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, TextIO

from kerasdist.phases.keyboard import Keyboard
from kerasdist.phases.lines import plain, redrawn
from kerasdist.phases.phase import Phase, shown_by

_SECONDS_BETWEEN_DRAWS = 0.2
# Plain lines: this long after a line comes the next one, of another phase or of the same.
SECONDS_BETWEEN_LINES, SECONDS_WITHIN_A_PHASE = 3.0, 15.0
_USUAL_WIDTH = 79
_ERASE = "\r\x1b[K"


class Output(Protocol):
    """Where phases are shown."""

    seconds_between: float

    def changed(self, phases: Sequence[Phase]) -> None:
        """A phase began or ended."""

    def passed(self, phases: Sequence[Phase]) -> None:
        """Some time passed."""

    def close(self) -> None:
        """Nothing more is shown."""


class Phases:
    """The phases of a command, the outermost first, and the thread that shows how time passes."""

    def __init__(self, output: Output):
        self._output = output
        self._lock = threading.RLock()
        self._phases: list[Phase] = []
        self._has_work, self._is_over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._show, name="kerasdist-phases", daemon=True)
        self._thread.start()

    def begin(self, phase: Phase) -> None:
        with self._lock:
            self._phases.append(phase)
            self._output.changed(self._phases)
            self._has_work.set()

    def end(self, phase: Phase) -> None:
        with self._lock:
            if phase in self._phases:
                self._phases.remove(phase)
            self._output.changed(self._phases)
            if not self._phases:
                self._has_work.clear()

    def pause(self) -> None:
        with self._lock:
            self._has_work.clear()
            self._output.changed([])

    def resume(self) -> None:
        with self._lock:
            if self._phases:
                self._output.changed(self._phases)
                self._has_work.set()

    def close(self) -> None:
        self._is_over.set()
        self._has_work.set()
        self._thread.join()
        with self._lock:
            self._output.close()

    def _show(self) -> None:
        while self._has_work.wait() and not self._is_over.wait(self._output.seconds_between):
            with self._lock:
                if self._phases and self._has_work.is_set():
                    self._output.passed(self._phases)


class TerminalLine:
    """The last line of a terminal. It is gone when nothing takes time; other output goes above it.

    It writes to a file descriptor of its own, because the usual one is redirected while TensorFlow
    starts. The cursor waits at the beginning of the line, so that what other code writes there
    replaces it.
    """

    seconds_between = _SECONDS_BETWEEN_DRAWS

    def __init__(self, file: int, *, ascii_only: bool = False):
        self._file, self._ascii_only = os.dup(file), ascii_only
        self._keyboard = Keyboard(self._file)
        self._is_drawn = False
        self._others: list[_Above] = []
        self.lock = threading.RLock()  # Nothing is drawn while other code writes.
        _open.add(self)

    def changed(self, phases: Sequence[Phase]) -> None:
        with self.lock:
            if not phases:
                self._take_back_streams()
                self.erase()
                self._keyboard.restore()
                return
            if not self._others:
                self._others = [_Above("stdout", self), _Above("stderr", self)]
            self.passed(phases)

    def passed(self, phases: Sequence[Phase]) -> None:
        with self.lock:
            if any(each.is_within_a_line for each in self._others):
                return
            self._keyboard.silence()
            try:
                width = (os.get_terminal_size(self._file).columns or _USUAL_WIDTH + 1) - 1
            except OSError:
                width = _USUAL_WIDTH
            text = redrawn(phases, width, ascii_only=self._ascii_only, is_coloured=True)
            self._write(f"{_ERASE}{text}\r")
            self._is_drawn = True

    def close(self) -> None:
        self.changed([])
        os.close(self._file)

    def erase(self) -> None:
        with self.lock:
            if self._is_drawn:
                self._is_drawn = False
                self._write(_ERASE)

    def _take_back_streams(self) -> None:
        for each in self._others:
            each.take_back()
        self._others = []

    def forget(self) -> None:
        """In the child of a fork: it has no thread that draws, and must not wait for its lock."""
        self.lock, self._is_drawn = threading.RLock(), False
        self._take_back_streams()

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError):  # The terminal was closed. The command may continue.
            os.write(self._file, text.encode(errors="replace"))


_open: weakref.WeakSet[TerminalLine] = weakref.WeakSet()


def _forget_all() -> None:
    for each in _open:
        each.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)


class _Above:
    """Stands in for `sys.stdout` or `sys.stderr`: what is written there goes above the line."""

    def __init__(self, name: str, below: TerminalLine):
        self._name, self._below = name, below
        self._stream: Any = getattr(sys, name)
        self.is_within_a_line = False
        setattr(sys, name, self)

    def write(self, text: str) -> int:
        with self._below.lock:
            if text:
                self._below.erase()
                self.is_within_a_line = not text.endswith(("\n", "\r"))
            return int(self._stream.write(text) or 0)

    def writelines(self, lines: Iterable[str]) -> None:
        for text in lines:
            self.write(text)

    def take_back(self) -> None:
        self.is_within_a_line = False
        if getattr(sys, self._name) is self:
            setattr(sys, self._name, self._stream)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


class PlainLines:
    """Lines for a log: one every few seconds at most. A phase that is over sooner gets none."""

    seconds_between = 0.5

    def __init__(self, stream: TextIO, clock: Callable[[], float] = time.perf_counter):
        self._stream, self._clock = stream, clock
        self._file: int | None = None
        with contextlib.suppress(AttributeError, OSError, ValueError):  # It need not be a file.
            # Stays the same while TensorFlow starts, which has the usual one redirected.
            self._file = os.dup(stream.fileno())
        self._last: float | None = None
        self._written: list[Phase] = []

    def changed(self, phases: Sequence[Phase]) -> None:
        self.passed(phases)

    def passed(self, phases: Sequence[Phase]) -> None:
        if not phases:
            return
        now, newest = self._clock(), phases[-1]
        is_told = list(phases) == self._written
        wait = SECONDS_WITHIN_A_PHASE if is_told else SECONDS_BETWEEN_LINES
        is_due = newest.seconds >= wait and (self._last is None or now - self._last >= wait)
        if is_due or (newest.at_once and not is_told):
            self._last, self._written = now, list(phases)
            self._write(f"kerasdist: {plain(phases)}\n")

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # Closed. The command may continue.
            if self._file is None:
                self._stream.write(text)
            else:
                os.write(self._file, text.encode(errors="replace"))


def can_redraw(stream: Any) -> bool:
    """Whether a stream is a terminal that can redraw lines."""
    try:
        if not stream.isatty():
            return False
    except (AttributeError, ValueError):  # None, as without a console; closed
        return False
    unknown = ("", "dumb", "unknown") if os.name == "posix" else ("dumb", "unknown")
    return os.environ.get("TERM", "").lower() not in unknown


def of_command(*, quiet: bool = False, json: bool = False, verbose: bool = False) -> Output | None:
    """Where a command shows its phases: on standard error, because they are not its result.

    With `json`, other lines would disturb, so there are none; unless standard error is a terminal
    and standard output is not. With `verbose`, TensorFlow writes there, too, so nothing is redrawn.
    """
    stream = sys.stderr
    is_terminal = can_redraw(stream)
    if quiet or stream is None or (json and (not is_terminal or can_redraw(sys.stdout))):
        return None
    if not is_terminal or verbose:
        return PlainLines(stream)
    encoding = getattr(stream, "encoding", None) or ""
    return TerminalLine(stream.fileno(), ascii_only=not encoding.lower().startswith("utf"))


@contextlib.contextmanager
def shown_on(output: Output | None) -> Iterator[None]:
    """Shows the phases of the block on an output."""
    if output is None:
        yield
        return
    phases = Phases(output)
    try:
        with shown_by(phases):
            yield
    finally:
        phases.close()
