"""Keeps what somebody types from spoiling a display: the terminal does not show it meanwhile."""

from __future__ import annotations

import contextlib
import os
from typing import Any

try:
    import termios
except ImportError:  # Not a POSIX system, which kerasdist refuses a moment later.
    termios = None  # type: ignore[assignment]

_FLAGS = 3  # The place of the local flags in what `tcgetattr` returns.


class Keyboard:
    """Switches the echo of a terminal off and on. Ctrl-C works, and the shell gets what was typed.

    If the process is killed, the shell puts the terminal back: shells do so for every job that a
    signal ends or stops. After that stop, `silence` must be called again, so call it at each draw.
    """

    def __init__(self, file: int | None):
        self._file = file
        self._is_silent = False

    def silence(self) -> None:
        """No echo from here on, if this process is in the foreground of the terminal."""
        attributes = self._attributes()
        if attributes is not None and attributes[_FLAGS] & termios.ECHO:
            attributes[_FLAGS] &= ~termios.ECHO
            self._is_silent = self._set(attributes)

    def restore(self) -> None:
        """The echo is back."""
        if not self._is_silent:
            return
        self._is_silent = False
        attributes = self._attributes()
        if attributes is not None:
            attributes[_FLAGS] |= termios.ECHO
            self._set(attributes)

    def _attributes(self) -> list[Any] | None:
        """None if this is not a terminal, or if another process has it: it would stop this one."""
        if self._file is None or termios is None:
            return None
        with contextlib.suppress(OSError, *_ERRORS):
            if os.tcgetpgrp(self._file) == os.getpgrp():
                return termios.tcgetattr(self._file)
        return None

    def _set(self, attributes: list[Any]) -> bool:
        if self._file is None:
            return False
        with contextlib.suppress(OSError, *_ERRORS):
            termios.tcsetattr(self._file, termios.TCSADRAIN, attributes)
            return True
        return False


_ERRORS = () if termios is None else (termios.error,)
