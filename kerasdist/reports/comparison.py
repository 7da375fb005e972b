"""Compares several runs: the settings that differ, the metrics, the curves."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from kerasdist.reports import html, metric_plots, program_settings
from kerasdist.reports.metric_plots import Logged
from kerasdist.reports.plots import NUM_COLOURS, NUM_DASHES
from kerasdist.runs.catalog import CODE
from kerasdist.runs.reading import Run
from kerasdist.runs.results.direction import BETTER, Known, is_higher_better

# More lines than this look alike.
MOST_RUNS = NUM_COLOURS * NUM_DASHES
UNRANKED = (
    "Runs on synthetic data are not ranked against the others: the best values are those of the "
    "runs on real data."
)
# These differ between any two runs, or are not settings.
_NO_SETTINGS = ("run_dir", "time", "earlier", CODE)


def labels(paths: Sequence[Path]) -> list[str]:
    """Short names of runs, without the folder that contains all of them.

    Example:
        >>> labels([Path("runs/cifar10/0001"), Path("runs/audio/0001")])
        ['cifar10/0001', 'audio/0001']
    """
    whole = [os.path.abspath(path) for path in paths]
    if len(set(whole)) < 2:
        return [str(path) for path in paths]
    common = os.path.commonpath([os.path.dirname(path) for path in whole])
    return [os.path.relpath(path, common) for path in whole]


def settings_of(run: Run) -> dict[str, Any]:
    """Everything a run was made with, by name: from its configuration and its environment."""
    found: dict[str, Any] = {}
    # Options first: if a recipe's setting has the same name, the setting wins.
    groups = sorted(run.config.items(), key=lambda item: item[0] != "options")
    for name, value in groups:
        found |= value if isinstance(value, Mapping) else {name: value}
    for name, value in run.environment.items():
        if name == "git" and isinstance(value, Mapping):
            found["git commit"] = str(value.get("commit"))[:12]
        elif name == BETTER:
            continue  # It is about the metrics.
        elif name == "devices":
            found["devices used"] = value
        elif isinstance(value, Mapping):
            found |= {f"{key} version": version for key, version in value.items()}
        else:
            found[name] = value
    if run.dataset is not None:  # While a run trains, its environment says it; later, its result.
        found["dataset"] = run.dataset
    return {name: value for name, value in found.items() if name not in _NO_SETTINGS}


def differences(runs: Sequence[Run]) -> dict[str, list[Any]]:
    """The settings that are not the same in all runs, by name; None where a run lacks one."""
    given = [settings_of(run) for run in runs]
    kept = program_settings.of_runs(runs)
    each = [{**settings, **more} for settings, more in zip(given, kept, strict=True)]
    names = {name: None for settings in (*given, *kept) for name in settings}
    of_programs = {name for more in kept for name in more}
    rows = {}
    for name in names:
        row = [settings.get(name) for settings in each]
        # Without a checkpoint, nobody knows what a program chose.
        known = [
            value
            for value, settings, more in zip(row, each, kept, strict=True)
            if name not in of_programs or more or name in settings
        ]
        if any(value != known[0] for value in known):
            rows[name] = row
    return program_settings.readable(rows)


def metrics(runs: Sequence[Run]) -> dict[str, list[float | None]]:
    """The final metrics of all runs, by name."""
    names = {name: None for run in runs for name in run.final}
    return {name: [run.final.get(name) for run in runs] for name in names}


def best_of(
    name: str, values: Sequence[float | None], directions: Known | None = None
) -> float | None:
    """The best of several values of a metric; None if there are not two different ones."""
    known = {value for value in values if value is not None}
    if len(known) < 2:
        return None
    return max(known) if is_higher_better(name, directions) else min(known)


def ranked(runs: Sequence[Run]) -> list[bool]:
    """Which of the runs are compared with each other: synthetic ones only among themselves.

    Whatever a run reaches on synthetic data, it says nothing about a run on real data.
    """
    is_mixed = len({run.is_synthetic for run in runs}) > 1
    return [not (is_mixed and run.is_synthetic) for run in runs]


def best_among(runs: Sequence[Run], name: str, values: Sequence[float | None]) -> list[bool]:
    """Which of the values of a metric are the best one."""
    takes_part = ranked(runs)
    directions = {key: value for run in runs for key, value in run.known_directions.items()}
    taking_part = [v for v, part in zip(values, takes_part, strict=True) if part]
    best = best_of(name, taking_part, directions)
    return [
        part and value is not None and value == best
        for value, part in zip(values, takes_part, strict=True)
    ]


def render(runs: Sequence[Run]) -> str:
    """The HTML of a page that compares runs."""
    names = labels([run.path for run in runs])
    return html.page(
        f"kerasdist: {len(runs)} runs",
        [
            f"<header><h1>{len(runs)} runs</h1></header>",
            *sections(names, runs, [metric_plots.Whole(run) for run in runs]),
        ],
    )


def sections(names: Sequence[str], runs: Sequence[Run], logged: Sequence[Logged]) -> list[str]:
    """The parts of a page that compares runs."""
    found = metrics(runs)
    plots = metric_plots.of_runs(names, logged, _in_order(runs))
    note = f'<p class="note">{UNRANKED}</p>' if not all(ranked(runs)) else ""
    return [
        html.section("Runs", note, _overview(names, runs)),
        html.section("Final metrics", _metrics(names, runs, found)),
        html.section("Curves", html.grid(plots)),
        html.section("Settings that differ", _differences(names, runs)),
    ]


def _in_order(runs: Sequence[Run]) -> list[str]:
    """The metrics of all runs, those first that people look at first."""
    first = [run.headline for run in runs if run.headline is not None]
    return list(dict.fromkeys([*first, *(name for run in runs for name in run.metric_names)]))


def _overview(names: Sequence[str], runs: Sequence[Run]) -> str:
    columns = ("run", "status", "name", "epochs", "steps", "examples/s", "devices", "started")
    rows = [
        [
            f'<td class="text">{_mark(i)}{escape(name)}{made_up(run)}</td>',
            f'<td class="{escape(run.status)}">{escape(run.status)}</td>',
            *(
                html.cell(value)
                for value in (
                    run.name,
                    run.num_epochs,
                    run.num_steps,
                    None if run.rate is None else f"{run.rate:,.0f}",
                    run.devices,
                    run.started_here or "",
                )
            ),
        ]
        for i, (name, run) in enumerate(zip(names, runs, strict=True))
    ]
    return html.table(columns, rows)


def made_up(run: Run) -> str:
    """A badge behind the name of a run on synthetic data."""
    return ' <span class="badge made-up">synthetic data</span>' * run.is_synthetic


def _mark(number: int) -> str:
    """A sample of the run's line in the plots."""
    return (
        f'<svg viewBox="0 0 22 8" width="22" height="8" class="c{number % NUM_COLOURS}" '
        f'aria-hidden="true"><path class="line d{number // NUM_COLOURS}" d="M0 4H22"/></svg> '
    )


def _metrics(
    names: Sequence[str], runs: Sequence[Run], found: Mapping[str, Sequence[float | None]]
) -> str:
    rows = []
    for metric, values in found.items():
        best = best_among(runs, metric, values)
        cells = [
            html.cell(value, "best" if is_best else "")
            for value, is_best in zip(values, best, strict=True)
        ]
        rows.append([html.row_name(metric), *cells])
    return html.table(("metric", *names), rows) if rows else "<p>No run has metrics yet.</p>"


def _differences(names: Sequence[str], runs: Sequence[Run]) -> str:
    rows = [
        [html.row_name(name), *(html.cell(html.beginning(value)) for value in values)]
        for name, values in differences(runs).items()
    ]
    unrecorded = program_settings.unrecorded(names, runs)
    note = f'<p class="note">{escape(unrecorded)}</p>' if unrecorded else ""
    if not rows:
        return note or "<p>None: all settings are the same.</p>"
    return note + html.table(("setting", *names), rows, "words")
