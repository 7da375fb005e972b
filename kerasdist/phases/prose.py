"""Prints sentences: a terminal gets them broken between words, a file as they are."""

from __future__ import annotations

import shutil
import sys
from typing import Any

from kerasdist.phases.displays import can_redraw
from kerasdist.phases.text import wrapped


def fitted(text: str, stream: Any) -> str:
    """A text as a stream gets it."""
    return wrapped(text, shutil.get_terminal_size().columns) if can_redraw(stream) else text


def say(text: str, stream: Any = None) -> None:
    """Prints a text for people, on standard output unless another stream is given."""
    # Looked up at each call, because notebooks and tests replace sys.stdout.
    stream = stream or sys.stdout
    print(fitted(text, stream), file=stream, flush=True)
