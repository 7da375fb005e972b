"""Warns once when a run's folder cannot be written, and once when it can be written again."""

from __future__ import annotations

import os
from collections.abc import Callable

from kerasdist.errors import first_line
from kerasdist.runs.ownership import NotOwnFolderError


class WriteFailures:
    """Remembers which writes fail, and warns about each reason once.

    Args:
        warn: Called with each warning.
    """

    def __init__(self, warn: Callable[[str], None]):
        self._warn = warn
        self._failing: set[str] = set()
        self._told: set[str] = set()

    def failed(self, what: str, error: Exception) -> None:
        """Notes that writing `what` failed."""
        self._failing.add(what)
        reason = _reason(error)
        if reason not in self._told:
            self._told.add(reason)
            self._warn(
                f"could not write {what}: {reason}. The training continues and tries again; the "
                "earlier checkpoints are intact."
            )

    def worked(self, what: str) -> None:
        """Notes that `what` was written."""
        self._failing.discard(what)
        if self._told and not self._failing:
            self._told.clear()
            self._warn("writing to the run's folder works again")


def _reason(error: Exception) -> str:
    """The reason without file names and times, which would make each failure look new."""
    if isinstance(error, OSError) and error.errno is not None:
        is_plain = not isinstance(error, NotOwnFolderError)
        text = os.strerror(error.errno) if is_plain else f"{error.filename}: {error.strerror}"
        return text.rstrip(".")
    text = first_line(error)
    # h5py puts the time and numbers in parentheses.
    return (text.split(" (")[0] if isinstance(error, RuntimeError) else text).rstrip(".")
