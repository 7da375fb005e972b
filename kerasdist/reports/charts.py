"""Draws what is not a line by step: predictions against targets, counts, calibration."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from kerasdist.reports.plots import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    axis,
    frame,
    short,
)

Pairs = Sequence[tuple[float, float]]


def scatter(pairs: Pairs, *, label: str, x_label: str) -> str:
    """Points on two equal scales, with the line on which both values are the same."""
    if not pairs:
        return ""
    both = _linear([value for pair in pairs for value in pair])
    across = Axis(both.low, both.high, LEFT, WIDTH - RIGHT)
    up = Axis(both.low, both.high, HEIGHT - BOTTOM, TOP)
    points = "".join(
        f'<circle class="point c0" cx="{across.at(x):.1f}" cy="{up.at(y):.1f}" r="2.4">'
        f"<title>{x:.5g}: {y:.5g}</title></circle>"
        for x, y in pairs
    )
    return frame(across, up, _diagonal(across, up) + points, label=label, x_label=x_label)


def histogram(
    edges: Sequence[float], counts: Sequence[int], *, label: str, x_label: str, colour: int = 0
) -> str:
    """A bar per interval, as high as its count."""
    if not counts or not any(counts):
        return ""
    across = Axis(edges[0], edges[-1], LEFT, WIDTH - RIGHT)
    up = Axis(0.0, 1.05 * max(counts), HEIGHT - BOTTOM, TOP)
    bars = []
    for low, high, count in zip(edges, edges[1:], counts, strict=False):
        left, right = across.at(low), across.at(high)
        title = f"{short(low)} to {short(high)}: {count:,}"
        bars.append(_bar(left, right, up.at(count), up.at(0), title, colour))
    middle = across.at(0) if across.low < 0 < across.high else None
    zero = "" if middle is None else f'<path class="ideal" d="M{middle:.1f} {TOP}V{up.at(0):.1f}"/>'
    return frame(across, up, "".join(bars) + zero, label=label, x_label=x_label)


def calibration(bins: Sequence[tuple[float, float, float, int]], *, label: str) -> str:
    """How often answers are right, by how sure the model is.

    Args:
        bins: `(lowest, highest probability, share of right answers, examples)` of each interval.
        label: What the plot shows, for screen readers.
    """
    there = [each for each in bins if each[3]]
    if not there:
        return ""
    across, up = Axis(0.0, 1.0, LEFT, WIDTH - RIGHT), Axis(0.0, 1.0, HEIGHT - BOTTOM, TOP)
    bars = []
    for low, high, share, count in there:
        title = f"probability {low:.2g} to {high:.2g}: {share:.1%} of {count:,} examples"
        bars.append(_bar(across.at(low), across.at(high), up.at(share), up.at(0), title, 2))
    return frame(
        across, up, "".join(bars) + _diagonal(across, up), label=label, x_label="probability"
    )


def _bar(left: float, right: float, top: float, ground: float, title: str, colour: int) -> str:
    return (
        f'<rect class="bar c{colour}" x="{left + 0.6:.1f}" y="{top:.1f}" '
        f'width="{max(right - left - 1.2, 0.8):.1f}" height="{max(ground - top, 0):.1f}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _diagonal(across: Axis, up: Axis) -> str:
    return (
        f'<path class="ideal" d="M{across.begin} {up.at(across.low):.1f}'
        f'L{across.end} {up.at(across.high):.1f}"/>'
    )


def _linear(values: Sequence[float]) -> Axis:
    found = axis(values, 0.0, 1.0, margin=0.05)
    if not found.is_log:
        return found
    low, high = min(values), max(values)
    return Axis(low - 0.05 * (high - low), high + 0.05 * (high - low), 0.0, 1.0)
