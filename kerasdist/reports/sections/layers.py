"""The layers of a run's model on its page, with their shapes and parameters."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any

from kerasdist.reports import html
from kerasdist.runs.metrics_log import count

# A page with more rows is hard to read.
_MOST_ROWS = 200


def table(model: Mapping[str, Any]) -> str:
    """A row per layer; "" if the run's model.json has no layers."""
    found = _summary(model).get("layers")
    layers = [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []
    if not layers:
        return ""
    rows = [
        [
            html.row_name(str(layer.get("name"))),
            html.cell(layer.get("class")),
            f"<td>{escape(_shape(layer.get('output')))}</td>",
            html.cell(layer.get("parameters")),
        ]
        for layer in layers[:_MOST_ROWS]
    ]
    more = len(layers) - _MOST_ROWS
    rest = f'<p class="soft">… and {more:,} more layers</p>' if more > 0 else ""
    columns = ("layer", "class", "output", "parameters")
    return f'<p class="soft">{escape(_about(model))}</p>{html.table(columns, rows)}{rest}'


def num_parameters(model: Mapping[str, Any]) -> int | None:
    """How many numbers the model's weights hold; None if model.json does not say."""
    return count(_summary(model).get("parameters"))


def _about(model: Mapping[str, Any]) -> str:
    summary = _summary(model)
    total, trainable = (count(summary.get(name)) for name in ("parameters", "trainable"))
    text = f"{model.get('class_name')}: {html.text_of(total)} parameters"
    if total is not None and trainable is not None and trainable < total:
        text += f", {trainable:,} of them trainable"
    return (
        f"{text}. Shapes are of one example; “?” stands for sizes that differ, “–” for unknown "
        "shapes."
    )


def _summary(model: Mapping[str, Any]) -> Mapping[str, Any]:
    found = model.get("summary")
    return found if isinstance(found, Mapping) else {}


def _shape(shape: Any) -> str:
    if not isinstance(shape, list):
        return "–"
    return " × ".join("?" if size is None else str(size) for size in shape) or "1"
