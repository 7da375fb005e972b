"""The plots of logged values: loss and metrics, learning rate, throughput.

A report draws every logged value. The board draws values that it has summarised while it read
them. Both are a `Logged` here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from kerasdist.reports import html
from kerasdist.reports.plots import Point, Range, Series
from kerasdist.runs.metrics_log import curve
from kerasdist.runs.reading import Run
from kerasdist.runs.results.headline import VALIDATION

# Points, and the ranges behind them if the points are means.
Values = tuple[Sequence[Point], Sequence[Range]]


class Logged(Protocol):
    """The logged values of a run, by name."""

    def by_epoch(self, name: str) -> Values: ...

    def by_step(self, name: str) -> Values: ...


class Whole:
    """Every logged value of a run that was read to its end."""

    def __init__(self, run: Run):
        self._run = run

    def by_epoch(self, name: str) -> Values:
        return curve(self._run.epochs, name), ()

    def by_step(self, name: str) -> Values:
        return curve(self._run.steps, name), ()


def of_metrics(logged: Logged, names: Sequence[str], first: str | None = None) -> list[str]:
    """A plot per metric, training and validation together; `first` comes first, then the loss."""
    plots = []
    for name in _in_order(names, first):
        if name.startswith(VALIDATION) and name.removeprefix(VALIDATION) in names:
            continue
        series = [
            _series("training", logged.by_epoch(name)),
            _series("validation", logged.by_epoch(f"{VALIDATION}{name}"), colour=1),
        ]
        if name.startswith(VALIDATION):
            series = [_series("validation", logged.by_epoch(name), colour=1)]
        each = logged.by_step(name)
        if each[0]:
            series.insert(0, _series("training, each logged step", each, is_faint=True))
        plots.append(html.curves(name, series))
    return plots


def _in_order(names: Sequence[str], first: str | None) -> list[str]:
    ahead = [first.removeprefix(VALIDATION)] if first else []
    # A metric that only the validation has keeps its whole name.
    ahead = [name for name in ahead if name in names]
    return list(dict.fromkeys([*ahead, "loss", *names]))


def of_speed(logged: Logged) -> list[str]:
    """The learning rate, examples per second, and the time spent waiting for input."""
    rates, ranges = merged(logged, "examples_per_second")
    # The first logged step has nothing to measure yet. It is not a gap in the line.
    rates = [point for point in rates if point[1] is not None]
    shares, share_ranges = merged(logged, "input_wait")
    waiting = "waiting for input, % of the time"
    return [
        html.curves("learning rate", [_series("learning rate", merged(logged, "learning_rate"))]),
        html.curves(
            "examples per second", [_series("examples per second", (rates, ranges), colour=2)]
        ),
        html.curves(
            waiting,
            [
                Series(
                    waiting,
                    [(x, None if y is None else 100 * y) for x, y in shares],
                    colour=3,
                    ranges=[(x, 100 * low, 100 * high) for x, low, high in share_ranges],
                )
            ],
        ),
    ]


def merged(logged: Logged, name: str) -> Values:
    """The values logged with steps and with epochs, sorted by step, each step once."""
    epochs, _ = logged.by_epoch(name)
    steps, ranges = logged.by_step(name)
    if ranges:  # So many steps that epochs add nothing.
        return steps, ranges
    return sorted(dict([*epochs, *steps]).items(), key=_place), ()


def _place(point: Point) -> float:
    return point[0]


def _series(name: str, values: Values, colour: int = 0, is_faint: bool = False) -> Series:
    points, ranges = values
    return Series(name, points, colour, is_faint, ranges)


def of_runs(labels: Sequence[str], runs: Sequence[Logged], names: Iterable[str]) -> list[str]:
    """A plot per metric, with the lines of several runs."""

    def series(read: str, name: str) -> list[Series]:
        found = []
        for i, (label, run) in enumerate(zip(labels, runs, strict=True)):
            points, ranges = getattr(run, read)(name)
            found.append(Series(label, points, i, ranges=ranges))
        return found

    plots = [html.curves(metric, series("by_epoch", metric)) for metric in names]
    if not any(plots):  # No epoch has ended yet.
        plots = [html.curves("loss, each logged step", series("by_step", "loss"))]
    for field, title in (
        ("learning_rate", "learning rate"),
        ("examples_per_second", "examples per second"),
    ):
        lines = series("by_step", field)
        kept = [
            Series(s.name, [p for p in s.points if p[1] is not None], s.colour, ranges=s.ranges)
            for s in lines
        ]
        plots.append(html.curves(title, kept))
    return plots
