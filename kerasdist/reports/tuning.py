"""The page of a study of `kerasdist tune`: the best trials, the history, each setting."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from kerasdist.reports import html
from kerasdist.reports.plots import Series

_MOST_ROWS = 30
# From this ratio on, the values of a setting are shown on a logarithmic axis.
_WIDE = 20.0


@dataclass(frozen=True)
class TrialRow:
    """One trial, as a page shows it.

    Attributes:
        number: Counted from 1.
        outcome: "finished", "pruned", "running" and so on.
        value: The best value of the monitored metric; None if there is none.
        epochs: How many epochs it has trained.
        settings: What was tried.
        run: The folder of its run.
    """

    number: int
    outcome: str
    value: float | None
    epochs: int
    settings: Mapping[str, Any]
    run: str


@dataclass(frozen=True)
class StudyFacts:
    """What a page says about the whole study."""

    name: str
    monitor: str
    is_higher_better: bool
    seed: int
    space: Mapping[str, str]
    num_wanted: int
    command: str | None = None


def ranked(rows: Sequence[TrialRow], *, is_higher_better: bool) -> list[TrialRow]:
    """The trials with a value, the best first; those that finished before the others."""
    sign = -1.0 if is_higher_better else 1.0
    known = [row for row in rows if row.value is not None]
    return sorted(known, key=lambda row: (row.outcome != "finished", sign * (row.value or 0.0)))


def best(rows: Sequence[TrialRow], *, is_higher_better: bool) -> TrialRow | None:
    """The best trial that finished; None if none has."""
    found = ranked(rows, is_higher_better=is_higher_better)[:1]
    return next((row for row in found if row.outcome == "finished"), None)


def render(facts: StudyFacts, rows: Sequence[TrialRow]) -> str:
    """The HTML of the page."""
    first = best(rows, is_higher_better=facts.is_higher_better)
    done = [row for row in rows if row.outcome != "running"]
    status = "finished" if len(done) >= facts.num_wanted else "unfinished"
    return html.page(
        f"{facts.name}: {len(rows)} trials",
        [
            f'<header><h1>{escape(facts.name)}</h1><span class="badge {status}">{status}</span>'
            "</header>",
            html.section("Summary", html.tiles(_summary(facts, rows, first))),
            html.section("Best settings", _best(facts, first)),
            html.section("Trials", _table(facts, rows)),
            html.section("History", html.grid([_history(facts, rows)])),
            html.section("Settings", html.grid(_settings(facts, rows)), *_choices(facts, rows)),
            html.section("Search", html.facts({**facts.space, "seed": facts.seed})),
        ],
    )


def _summary(facts: StudyFacts, rows: Sequence[TrialRow], first: TrialRow | None) -> dict[str, Any]:
    outcomes = [row.outcome.partition(":")[0] for row in rows]
    counted = {name: outcomes.count(name) for name in dict.fromkeys(outcomes)}
    tiles: dict[str, Any] = {"trials": f"{len(rows)} of {max(facts.num_wanted, len(rows))}"}
    if first is not None:
        tiles[f"best {facts.monitor}, trial {first.number}"] = first.value
    return tiles | counted


def _best(facts: StudyFacts, first: TrialRow | None) -> str:
    if first is None:
        return "<p>No trial has finished yet.</p>"
    lines = {"Train with them:": facts.command} if facts.command else {}
    return html.facts(dict(first.settings)) + html.commands(lines)


def _table(facts: StudyFacts, rows: Sequence[TrialRow]) -> str:
    found = ranked(rows, is_higher_better=facts.is_higher_better)
    found += [row for row in rows if row.value is None]
    names = list(dict.fromkeys(name for row in rows for name in row.settings))
    cells = []
    for row in found[:_MOST_ROWS]:
        link = f'<a href="{escape(row.run)}/report.html">{row.number}</a>'
        cells.append(
            [
                f'<td class="text">{link}</td>',
                html.cell(row.value, "best" if row is found[0] else ""),
                html.cell(row.outcome, "text"),
                html.cell(row.epochs),
                *(html.cell(row.settings.get(name)) for name in names),
            ]
        )
    left_out = len(found) - len(cells)
    note = f"<p class='soft'>{left_out} more trials are not shown.</p>" if left_out else ""
    return html.table(("trial", facts.monitor, "outcome", "epochs", *names), cells) + note


def _history(facts: StudyFacts, rows: Sequence[TrialRow]) -> str:
    finished = [r for r in rows if r.value is not None and r.outcome == "finished"]
    others = [r for r in rows if r.value is not None and r.outcome != "finished"]
    pick = max if facts.is_higher_better else min
    line: list[tuple[float, float | None]] = []
    for row in finished:
        values = [v for v in (row.value, line[-1][1] if line else None) if v is not None]
        line.append((float(row.number), pick(values)))
    series = [
        Series("best so far", line, 0, is_faint=True),
        Series("finished", [(float(r.number), r.value) for r in finished], 0, is_dots=True),
        Series("stopped early", [(float(r.number), r.value) for r in others], 7, is_dots=True),
    ]
    return html.curves(facts.monitor, series, "trial")


def _settings(facts: StudyFacts, rows: Sequence[TrialRow]) -> list[str]:
    """For each number: its values, and what they led to."""
    plots = []
    for name in dict.fromkeys(name for row in rows for name in row.settings):
        series = []
        for title, colour, is_done in (("stopped early", 7, False), ("finished", 0, True)):
            points = sorted(
                (float(row.settings[name]), row.value)
                for row in rows
                if _is_number(row.settings.get(name))
                and row.value is not None
                and (row.outcome == "finished") == is_done
            )
            series.append(Series(title, points, colour, is_dots=True))
        values = [x for each in series for x, _ in each.points]
        if len(set(values)) > 1:
            is_log = facts.space.get(name, "").endswith(":log")  # As it was searched.
            is_log = min(values) > 0 and (is_log or max(values) / min(values) > _WIDE)
            plots.append(html.curves(f"{facts.monitor} by {name}", series, name, is_x_log=is_log))
    return plots


def _choices(facts: StudyFacts, rows: Sequence[TrialRow]) -> list[str]:
    """For each setting that is not a number: its values, and what they led to."""
    tables = []
    for name in dict.fromkeys(name for row in rows for name in row.settings):
        found: dict[str, list[float]] = {}
        for row in rows:
            value = row.settings.get(name)
            if name in row.settings and not _is_number(value) and row.value is not None:
                found.setdefault(html.text_of(value), []).append(row.value)
        pick = max if facts.is_higher_better else min
        cells = [
            [
                html.row_name(value),
                html.cell(len(values)),
                html.cell(pick(values)),
                html.cell(statistics.median(values)),
            ]
            for value, values in found.items()
        ]
        if cells:
            tables.append(html.table((name, "trials", "best", "median"), cells))
    return tables


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
