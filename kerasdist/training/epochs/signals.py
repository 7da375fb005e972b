"""Ctrl-C, SIGTERM, SIGHUP, a closed output: the training saves and stops after the current call."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

_AFTER_END = "the training had ended, and its result is kept"


class Terminated(SystemExit):
    """The run received SIGTERM or SIGHUP and is saved: the process exits with 143 or 129."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name


class LostReaderError(BrokenPipeError):
    """Nobody reads what the run prints any more, as after `| head`. It is saved."""

    def __init__(self) -> None:
        super().__init__("the reader of its output was closed")


class Interrupts:
    """Notes the first signal. A second one stops the process at once."""

    def __init__(self) -> None:
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    @contextlib.contextmanager
    def watching(self) -> Iterator[Interrupts]:
        if threading.current_thread() is not threading.main_thread():
            yield self  # Only the main thread can set handlers.
            return
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # `nohup` wants the training to continue without its terminal.
            self._before[number] = signal.signal(number, self._note)
        try:
            yield self
        finally:
            self._put_back()

    def lose_reader(self) -> None:
        """Stops as a signal does. Ctrl-C also ends the `tee` that reads the output of a run."""
        self.received = self.received or signal.SIGPIPE

    def _note(self, number: int, frame: object) -> None:
        if self.received not in (None, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        self.received = number

    def _put_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}


def raise_for(number: int, *, is_after_end: bool = False) -> None:
    """Raises the exception that a signal stands for; none for 0.

    If it came too late to stop the training, the result is that of a finished run.
    """
    errors: dict[int, BaseException] = {signal.SIGPIPE: LostReaderError()}
    # Python ends with code 130 only for this class itself.
    errors[signal.SIGINT] = KeyboardInterrupt(*[_AFTER_END] * is_after_end)
    for each in (signal.SIGTERM, signal.SIGHUP):
        errors[each] = Terminated(each)
    if number:
        error = errors[number]
        vars(error)["is_after_end"] = is_after_end
        raise error


def is_after_end(error: BaseException) -> bool:
    """Whether it was raised for a signal that came when the training had ended."""
    return bool(vars(error).get("is_after_end"))


def title(error: BaseException) -> str:
    """What stopped a run, in words."""
    return error.name if isinstance(error, Terminated) else str(error) or "Ctrl-C"
