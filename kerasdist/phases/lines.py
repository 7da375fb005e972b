"""Phases as one line of text: for a terminal that redraws it, and for a log."""

from __future__ import annotations

from collections.abc import Sequence

from kerasdist.phases.phase import Phase, overall
from kerasdist.phases.text import GAP, bar, duration, shortened

# A phase that takes longer than this is shown with its seconds.
_SECONDS_SHOWN = 1.0
_MOST_TITLES = 3
_WIDEST_BAR, _NARROWEST_BAR = 30, 8
_CYAN, _DIM, _PLAIN = "\x1b[36m", "\x1b[2m", "\x1b[0m"


def _title(phases: Sequence[Phase]) -> str:
    parts = []
    # The first ones say where it is, the last one says what happens.
    for each in (*phases[: _MOST_TITLES - 1], *phases[_MOST_TITLES - 1 :][-1:]):
        counted = f" {each.done:,}/{each.total:,}" if each.total and len(phases) > 1 else ""
        parts.append(f"{each.title}{counted}")
    return ", ".join(dict.fromkeys(parts))


def plain(phases: Sequence[Phase]) -> str:
    """`reading the data, 40%, 0:12 left`; without a known end `reading the data …`."""
    share, left = overall(phases)
    if share is None:
        seconds = phases[-1].seconds
        taken = f" {duration(seconds)}" if seconds >= _SECONDS_SHOWN else ""
        return f"{_title(phases)} ...{taken}"
    known = [f"{share:.0%}", *([] if left is None else [f"{duration(left)} left"])]
    return ", ".join([_title(phases), *known])


def redrawn(
    phases: Sequence[Phase], width: int, *, ascii_only: bool = False, is_coloured: bool = False
) -> str:
    """The phases in one line: `reading the data  ━━━━━──────  40%  0:12 left`."""
    share, left = overall(phases)
    title = _title(phases)
    seconds = phases[-1].seconds
    ticking = f"{GAP}{duration(seconds)}" if seconds >= _SECONDS_SHOWN else ""
    if share is None:
        end = "..." if ascii_only else "…"
        return shortened(f"{title}{end}{ticking}", width, ascii_only=ascii_only)
    right = f"{GAP}{share:4.0%}" + (ticking if left is None else f"{GAP}{duration(left)} left")
    room = width - len(title) - len(GAP) - len(right)
    if room < _NARROWEST_BAR:
        return shortened(f"{title}{right}", width, ascii_only=ascii_only)
    done, rest = bar(min(room, _WIDEST_BAR), share, ascii_only=ascii_only)
    if is_coloured:
        done, rest = f"{_CYAN}{done}{_PLAIN}", f"{_DIM}{rest}{_PLAIN}"
    return f"{title}{GAP}{done}{rest}{right}"
