"""What a command is doing right now: `with phase("reading the data", total=100) as reading: ...`.

Where nothing shows phases, as in a program that calls kerasdist, a phase costs nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol


class Phase:
    """Something that takes time. `total` parts of it are known, or its end is not.

    Any thread may call `advance` and `reached`.

    Attributes:
        title: What is done, as a person would say it: "reading the data".
        total: How many parts it has; None if that is not known.
        unit: What a part is: "step", "file".
        done: How many parts are over.
    """

    def __init__(
        self,
        title: str,
        total: int | None = None,
        unit: str = "",
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.title, self.total, self.unit, self.done = title, total, unit, 0
        self._clock = clock
        self._began = clock()
        # The first part often compiles: the time left follows from the later ones.
        self._first: tuple[float, int] | None = None

    def advance(self, parts: int = 1) -> None:
        """More parts are over."""
        self.reached(self.done + parts)

    def reached(self, done: int, total: int | None = None) -> None:
        """So many parts are over by now, of so many if that is known by now."""
        self.done = done
        if total is not None:
            self.total = total
        if self._first is None and done:
            self._first = self._clock(), done

    @property
    def seconds(self) -> float:
        """How long it has taken."""
        return self._clock() - self._began

    @property
    def share(self) -> float | None:
        """How much of it is over, from 0 to 1."""
        return min(1.0, self.done / self.total) if self.total else None

    def seconds_left(self) -> float | None:
        """How long the rest will take; None if that cannot be said yet."""
        if not self.total or self._first is None:
            return None
        since, first = self._first
        measured = self.done - first
        if measured <= 0:
            return None
        return max(0.0, (self.total - self.done) * (self._clock() - since) / measured)


class Display(Protocol):
    """Shows phases. The last one of `begin` ends first."""

    def begin(self, phase: Phase) -> None: ...
    def end(self, phase: Phase) -> None: ...
    def pause(self) -> None: ...
    def resume(self) -> None: ...


class _Current:
    display: Display | None = None


_current = _Current()


def is_shown() -> bool:
    """Whether somebody sees the phases."""
    return _current.display is not None


@contextlib.contextmanager
def phase(title: str, total: int | None = None, *, unit: str = "") -> Iterator[Phase]:
    """Says what the block does, if phases are shown.

    Phases can be inside others: of a phase with three parts, the phases in its second part fill the
    second third of the bar.
    """
    found = Phase(title, total, unit)
    display = _current.display
    if display is None:
        yield found
        return
    display.begin(found)
    try:
        yield found
    finally:
        display.end(found)


@contextlib.contextmanager
def not_shown() -> Iterator[None]:
    """Phases are not shown in the block, for something else that redraws lines of the terminal."""
    display = _current.display
    if display is None:
        yield
        return
    display.pause()
    try:
        with shown_by(None):
            yield
    finally:
        display.resume()


@contextlib.contextmanager
def shown_by(display: Display | None) -> Iterator[None]:
    """Phases in the block are shown by `display`; by nothing if it is None."""
    before, _current.display = _current.display, display
    try:
        yield
    finally:
        _current.display = before


def overall(phases: Sequence[Phase]) -> tuple[float | None, float | None]:
    """`(share that is over, seconds left)` of phases inside each other, the outermost first."""
    counted = [each for each in phases if each.total]
    if not counted:
        return None, None
    share = 0.0
    for each in reversed(counted):
        share = min(1.0, (each.done + share) / (each.total or 1))
    outermost = counted[0]
    if len(counted) == 1:
        return share, outermost.seconds_left()
    left = outermost.seconds * (1 - share) / share if share > _LEAST_SHARE else None
    return share, left


# Below this, the time left of phases inside each other is a guess.
_LEAST_SHARE = 0.05
