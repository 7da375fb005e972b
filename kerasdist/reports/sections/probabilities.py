"""A classifier's probabilities on a run's page: calibration, and precision against recall."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from kerasdist.reports import charts, html
from kerasdist.reports.plots import Series
from kerasdist.reports.sections.numbers import rows_of
from kerasdist.runs.metrics_log import finite


def plots(evaluation: Mapping[str, Any]) -> list[str]:
    """The plots that apply; none for a model whose outputs are not probabilities."""
    return [_precision_recall(evaluation), _calibration(evaluation)]


def _precision_recall(evaluation: Mapping[str, Any]) -> str:
    found = evaluation.get("precision_recall")
    found = found if isinstance(found, Mapping) else {}
    points = [(recall, precision) for recall, precision in rows_of(found.get("points"), 2)]
    if not points:
        return ""
    name, average = str(found.get("class")), finite(found.get("average_precision"))
    share = finite(found.get("share"))
    about = f"Finding the class “{name}”: average precision {html.text_of(average)}"
    if share is not None:
        about += f" (always answering it: {html.text_of(share)})"
    drawn = html.curves(
        "precision by recall",
        [Series("precision", points)],
        x_label="recall",
        y_range=(0.0, 1.0),
    )
    return drawn.replace("</figcaption>", f"</figcaption>{_line(about)}", 1)


def _calibration(evaluation: Mapping[str, Any]) -> str:
    found = evaluation.get("calibration")
    found = found if isinstance(found, Mapping) else {}
    bins = [
        (low, high, share, int(count)) for low, high, share, count in rows_of(found.get("bins"), 4)
    ]
    about = (
        "How often an answer is right, by its probability. On the dashed line, the model is as "
        f"sure as it is right; on average it is {_percent(found.get('error'))} off."
    )
    drawn = charts.calibration(bins, label="share of right answers by probability")
    return html.figure("calibration", drawn, _line(about))


def _percent(value: Any) -> str:
    number = finite(value)
    return "–" if number is None else f"{number:.1%}"


def _line(text: str) -> str:
    return f'<p class="soft small">{escape(text)}</p>'
