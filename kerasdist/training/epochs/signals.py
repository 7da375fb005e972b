"""Ctrl-C, SIGTERM, SIGHUP, a closed output: the training saves and stops after the current call."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any


class Terminated(SystemExit):
    """The run received SIGTERM or SIGHUP and is saved: the process exits with 143 or 129."""

    def __init__(self, number: int = signal.SIGTERM) -> None:
        super().__init__(128 + number)
        self.name = signal.Signals(number).name


class LostReaderError(BrokenPipeError):
    """Nobody reads what the run prints any more, as after `| head`. It is saved."""

    def __init__(self) -> None:
        super().__init__("the reader of its output was closed")


class TerminatedAfterEnd(Terminated):
    """A signal came when the training had ended: its result is that of a finished run."""


class InterruptedAfterEnd(KeyboardInterrupt):
    """Ctrl-C came when the training had ended: its result is that of a finished run."""


class LostReaderAfterEndError(LostReaderError):
    """The output was closed when the training had ended: its result is that of a finished run."""


AFTER_END = (TerminatedAfterEnd, InterruptedAfterEnd, LostReaderAfterEndError)


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


def raise_for(number: int) -> None:
    """Raises the exception that a signal stands for."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    if number in (signal.SIGTERM, signal.SIGHUP):
        raise Terminated(number)
    if number == signal.SIGPIPE:
        raise LostReaderError


def raise_after_end(number: int) -> None:
    """Raises what a signal stands for that came too late to stop the training."""
    if number == signal.SIGINT:
        raise InterruptedAfterEnd
    if number in (signal.SIGTERM, signal.SIGHUP):
        raise TerminatedAfterEnd(number)
    if number == signal.SIGPIPE:
        raise LostReaderAfterEndError


def title(error: BaseException) -> str:
    """What stopped a run, in words."""
    return error.name if isinstance(error, Terminated) else str(error) or "Ctrl-C"
