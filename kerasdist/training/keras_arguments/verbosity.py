"""Keras's `verbose` and kerasdist's `progress`: what is shown."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from kerasdist.errors import KerasdistError
from kerasdist.training.progress.reporter import mode_of


def checked_verbose(verbose: Any) -> int | str:
    """ "auto", or a number: 0 for silence, 1 for a display, 2 for one line per epoch."""
    if isinstance(verbose, str) and verbose == "auto":
        return verbose
    if isinstance(verbose, Integral) and int(verbose) >= 0:  # Also True and False.
        return int(verbose)
    raise KerasdistError(
        f"Received `verbose={verbose!r}`. Expected 'auto', 0 for silence, 1 for progress, or 2 for "
        "one line per epoch. Use `progress='json'` for lines that programs read."
    )


def mode_for(verbose: Any, progress: Any) -> str:
    """The mode of a `Reporter`. `progress` wins unless it is "auto"."""
    level = checked_verbose(verbose)
    if isinstance(progress, str) and progress == "auto":
        progress = {"auto": "auto", 0: False, 1: "auto"}.get(level, "lines")
    return mode_of(progress)
