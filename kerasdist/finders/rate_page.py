"""Shows a learning rate range test: as a page, and as a sketch of letters in a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import Protocol

from kerasdist.reports import html
from kerasdist.reports.plots import Series, short

_WIDTH, _HEIGHT = 60, 9


class Found(Protocol):
    """What a range test found."""

    @property
    def rates(self) -> Sequence[float]: ...

    @property
    def losses(self) -> Sequence[float]: ...

    @property
    def smoothed(self) -> Sequence[float]: ...

    @property
    def suggestion(self) -> float | None: ...

    @property
    def reason(self) -> str: ...

    @property
    def ended(self) -> str: ...


def render(found: Found, *, title: str = "", command: str | None = None) -> str:
    """The page of a range test."""
    rates, curve = found.rates, found.smoothed
    highest = _top(found)
    series = [
        Series(
            "each step",
            [(x, min(y, highest)) for x, y in zip(rates, found.losses, strict=True)],
            is_faint=True,
        ),
        Series("smoothed", [(x, min(y, highest)) for x, y in zip(rates, curve, strict=True)]),
    ]
    if found.suggestion is not None:
        line = [(found.suggestion, min(curve)), (found.suggestion, highest)]
        series.append(Series(f"suggestion: {found.suggestion:g}", line, 1))
    heading = f"Learning rates{f' of {title}' if title else ''}"
    answer = "none" if found.suggestion is None else f"{found.suggestion:g}"
    return html.page(
        heading,
        [
            f"<header><h1>{escape(heading)}</h1></header>",
            html.tiles({"suggestion": answer, "steps": len(rates)}),
            f"<p>{escape(_sentence(found))}</p>",
            html.grid([html.curves("loss", series, "learning rate", is_x_log=True)]),
            html.commands({"Train with it:": command}) if command else "",
        ],
    )


def _sentence(found: Found) -> str:
    return f"{found.reason[:1].upper()}{found.reason[1:]}. The test ended because {found.ended}."


def _top(found: Found) -> float:
    """Where to cut the plot: what diverges would make the rest flat."""
    curve = found.smoothed
    start = max(curve[: max(1, len(curve) // 10)])
    return min(max(curve), start + 0.5 * (start - min(curve)))


def sketch(found: Found) -> list[str]:
    """The smoothed curve in letters; `|` marks the suggestion."""
    curve, rates = found.smoothed, found.rates
    low, high = min(curve), _top(found)
    span = (high - low) or 1.0
    first, last = math.log(rates[0]), math.log(rates[-1])
    columns: dict[int, list[float]] = {}
    for rate, loss in zip(rates, curve, strict=True):
        column = round((math.log(rate) - first) / (last - first) * (_WIDTH - 1))
        columns.setdefault(column, []).append(loss)
    rows = [[" "] * _WIDTH for _ in range(_HEIGHT)]
    if found.suggestion is not None:
        marked = round((math.log(found.suggestion) - first) / (last - first) * (_WIDTH - 1))
        for row in rows:
            row[min(max(marked, 0), _WIDTH - 1)] = "|"
    for column, losses in columns.items():
        place = max(0.0, high - sum(losses) / len(losses)) / span
        rows[round(place * (_HEIGHT - 1))][column] = "*"
    labels = {0: short(high), _HEIGHT - 1: short(low)}
    width = max(map(len, labels.values()))
    lines = [f"{labels.get(i, ''):>{width}} |{''.join(row)}".rstrip() for i, row in enumerate(rows)]
    ends = f"{rates[0]:.2g}", f"{rates[-1]:.2g}"
    gap = _WIDTH - len(ends[0]) - len(ends[1])
    return [
        *lines,
        f"{'':{width}} +{'-' * _WIDTH}",
        f"{'loss':{width}}  {ends[0]}{'learning rate':^{gap}}{ends[1]}",
    ]
