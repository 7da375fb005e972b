"""Who hears what a training says besides its progress: its reporter, or the program around it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

from kerasdist.training.progress.reporter import Reporter

Listener = Callable[[str], None]
_current: ContextVar[Listener | None] = ContextVar("listener", default=None)


@contextlib.contextmanager
def heard_by(listener: Listener) -> Iterator[None]:
    """In the block, trainings tell `listener`, also if their own progress is silent."""
    token = _current.set(listener)
    try:
        yield
    finally:
        _current.reset(token)


def say(reporter: Reporter, text: str) -> None:
    """Says something to the listener, or to the reporter if there is none or it has a display."""
    listener = _current.get()
    if listener is None or reporter.has_display:
        reporter.say(text)
    else:
        listener(text)
