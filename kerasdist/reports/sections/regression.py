"""A regression's predictions on a run's page: against the targets, and what they miss."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from kerasdist.reports import charts, html
from kerasdist.reports.sections.confusion import of_which
from kerasdist.reports.sections.numbers import numbers_of, rows_of


def targets(evaluation: Mapping[str, Any]) -> str:
    """Two plots and a row of numbers per target; "" if the model has no such targets."""
    found = evaluation.get("targets")
    each = [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
    figures = [figure for one in each for figure in _figures(one)]
    if not any(figures):
        return ""
    about = f"{of_which(evaluation)} On the dashed line, the prediction is the target."
    rows = [
        [
            html.row_name(str(one.get("name"))),
            *(html.cell(one.get(name)) for name in ("mae", "rmse", "r2")),
        ]
        for one in each
    ]
    columns = ("target", "mean absolute error", "root mean squared error", "R²")
    return (
        f'<p class="soft">{escape(about)}</p>{html.grid(figures)}<p></p>{html.table(columns, rows)}'
    )


def _figures(target: Mapping[str, Any]) -> list[str]:
    name = str(target.get("name"))
    pairs = [(true, said) for true, said in rows_of(target.get("points"), 2)]
    drawn = charts.scatter(pairs, label=f"predictions by {name}", x_label=f"{name}, true")
    figures = [html.figure(f"{name}: predicted by true", drawn, _shown_of(target, len(pairs)))]
    residuals = target.get("residuals")
    residuals = residuals if isinstance(residuals, Mapping) else {}
    edges, counts = numbers_of(residuals.get("edges")), numbers_of(residuals.get("counts"))
    if len(edges) == len(counts) + 1 > 1 and edges[-1] > edges[0]:
        bars = charts.histogram(
            edges,
            [int(count) for count in counts],
            label=f"errors of {name}",
            x_label="prediction − target",
        )
        figures.append(
            html.figure(f"{name}: residuals", bars, '<p class="soft small">examples</p>')
        )
    return figures


def _shown_of(target: Mapping[str, Any], shown: int) -> str:
    total = target.get("examples")
    if not isinstance(total, int) or total <= shown:
        return ""
    return f'<p class="soft small">{shown:,} of {total:,} examples, evenly chosen</p>'
