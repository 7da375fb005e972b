"""What a command is doing right now: `with phase("reading the data", total=100) as reading: ...`.

Where nothing shows phases, as in a program that calls kerasdist, a phase costs nothing.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

# Below this, the time left of phases inside each other is a guess.
_LEAST_SHARE = 0.05


class Phase:
    """Something that takes time. `total` parts of it are known, or its end is not.

    Any thread may call `advance` and `reached`.

    Attributes:
        title: What is done, as a person would say it: "reading the data".
        total: How many parts it has; None if that is not known.
        unit: What a part is: "step", "file".
        done: How many parts are over.
        at_once: Whether a log gets a line about it even if it is short.
    """

    def __init__(
        self,
        title: str,
        total: int | None = None,
        unit: str = "",
        *,
        at_once: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ):
        self.title, self.total, self.unit, self.done = title, total, unit, 0
        self.at_once = at_once
        self._clock = clock
        self._began = clock()
        # When how much was over, first and last. The first part often compiles: the time left
        # follows from the later ones.
        self._first: tuple[float, int] | None = None
        self._last = self._began, 0
        self._guess: tuple[float, float, float] | None = None

    def advance(self, parts: int = 1) -> None:
        """More parts are over."""
        self.reached(self.done + parts)

    def reached(self, done: int, total: int | None = None) -> None:
        """So many parts are over by now, of so many if that is known by now."""
        self.done = done
        if total is not None:
            self.total = total
        if done != self._last[1]:
            self._last = self._clock(), done
        if self._first is None and done:
            self._first = self._last

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
        (since, first), (until, done) = self._first, self._last
        if done <= first:
            return None
        each, waited = (until - since) / (done - first), self._clock() - until
        # A part that takes longer than the others says that the later ones may, too.
        return max(0.0, (self.total - done) * max(each, waited) - waited)

    def seconds_left_of(self, share: float) -> float | None:
        """How long the rest will take if `share` of it is over, as phases inside it say."""
        if share <= _LEAST_SHARE:
            return None
        if self._guess is None or self._guess[0] != share:
            self._guess = share, self._clock(), self.seconds * (1 - share) / share
        _, since, left = self._guess
        left -= self._clock() - since
        return left if left >= 0 else None


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
def phase(
    title: str, total: int | None = None, *, unit: str = "", at_once: bool = False
) -> Iterator[Phase]:
    """Says what the block does, if phases are shown.

    Phases can be inside others: of a phase with three parts, the phases in its second part fill the
    second third of the bar.
    """
    found = Phase(title, total, unit, at_once=at_once)
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
    left = outermost.seconds_left() if len(counted) == 1 else None
    if left is None and len(phases) > 1:
        left = outermost.seconds_left_of(share)
    return share, left
