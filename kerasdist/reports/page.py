"""report.html: the page about one run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from typing import Any

from kerasdist.reports import html, metric_plots
from kerasdist.reports.sections import confusion, examples, layers, probabilities, regression
from kerasdist.runs.catalog import CODE
from kerasdist.runs.file_names import CONFIG
from kerasdist.runs.reading import Run
from kerasdist.runs.results.direction import BETTER
from kerasdist.runs.results.guessing import no_better
from kerasdist.runs.results.headline import VALIDATION, in_words, is_share

_MOST_EPOCHS = 100
# For result.json, these stand for data whose origin nobody knows.
_NO_NAMES = ("caller", "provider", "recipe")
SYNTHETIC_NOTE = "Trained on synthetic data: the numbers say nothing about the real dataset."


def render(run: Run) -> str:
    """The HTML of a run's page."""
    logged = metric_plots.Whole(run)
    return html.page(
        f"{run.name}: {run.path.name}",
        [
            _head(run),
            html.section(
                "Summary", headline(run), _careful(run), html.tiles(summary(run)), _metrics(run)
            ),
            html.section(
                "Loss and metrics",
                html.grid(metric_plots.of_metrics(logged, run.metric_names, first=run.headline)),
                _epochs(run),
            ),
            html.section("Classes", confusion.classes(run.evaluation)),
            html.section("Confusion matrix", confusion.matrix(run.evaluation)),
            html.section("Probabilities", html.grid(probabilities.plots(run.evaluation))),
            html.section("Predictions and targets", regression.targets(run.evaluation)),
            html.section("Worst and best examples", examples.shown(run.evaluation)),
            html.section("A training batch", examples.training_batch(run.evaluation)),
            html.section("Learning rate and throughput", html.grid(metric_plots.of_speed(logged))),
            html.section("Model", layers.table(run.model)),
            html.section("Configuration", *_configuration(run)),
            html.section("Environment", html.facts(_environment(run))),
            html.section("Commands", _commands(run)),
            _foot(),
        ],
    )


def _head(run: Run) -> str:
    status = escape(run.status)
    parts = [
        f'<header><h1>{escape(run.name)}</h1><span class="badge {status}">{status}</span>'
        f'<p class="path soft">{escape(str(run.path))}</p></header>'
    ]
    if run.result.get("error") and run.status not in ("finished", "running"):
        why = f"{run.status.capitalize()}: {run.result['error']}"
        parts.append(f'<p class="note">{escape(why)}</p>')
    if run.is_synthetic:
        parts.append(f'<p class="note">{SYNTHETIC_NOTE}</p>')
    return "\n".join(parts)


def _foot() -> str:
    now = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    return f"<footer>Written by kerasdist, {now[:19]} UTC.</footer>"


def headline(run: Run) -> str:
    """The metric that people look at first, in the largest print, and the loss beside it."""
    tiles = [_large(run, name, " second" if i else "") for i, name in enumerate(_first(run))]
    return f'<div class="headline">{"".join(tiles)}</div>' * bool(tiles)


def _careful(run: Run) -> str:
    why = no_better(run.evaluation, run.num_steps)
    return "" if why is None else f'<p class="note">{escape(f"Careful: {why}.")}</p>'


def _first(run: Run) -> list[str]:
    """The metrics in large print."""
    first = run.headline
    if first is None:
        return []
    loss = f"{VALIDATION}loss" if first.startswith(VALIDATION) else "loss"
    return [first, *([loss] if loss != first and loss in run.final else [])]


def _large(run: Run, name: str, kind: str) -> str:
    best = run.best(name)
    about = f"best: {said(name, best.value)} in epoch {best.epoch:,}" if best else ""
    return (
        f'<div class="tile{kind}"><span>{escape(in_words(name))}</span>'
        f"<b>{escape(said(name, run.last(name)))}</b><small>{escape(about)}</small></div>"
    )


def said(name: str, value: float | None) -> str:
    """A metric's value as people read it: an accuracy in percent.

    Example:
        >>> said("val_accuracy", 0.8912), said("val_loss", 0.4567891), said("loss", None)
        ('89.1%', '0.4568', '–')
    """
    if value is not None and is_share(name) and 0 <= value <= 1:
        return f"{value:.1%}"
    return html.text_of(value)


def summary(run: Run) -> dict[str, Any]:
    """What the tiles of a run's page say: its data, its size and its devices."""
    values: dict[str, Any] = {
        "dataset": None if run.dataset in _NO_NAMES else run.data_title,
    }
    best = run.best(run.monitor)
    if best is not None and run.monitor not in _first(run):
        values[f"best {run.monitor}, epoch {best.epoch}"] = best.value
    values |= {
        "epochs": _of(run.num_epochs, run, "epochs"),
        "steps": _of(run.num_steps, run, "steps"),
        "examples seen": run.result.get("examples_seen"),
        "examples/s": None if run.rate is None else f"{run.rate:,.0f}",
        "devices": run.devices,
        "parameters": layers.num_parameters(run.model),
    }
    return {name: value for name, value in values.items() if value not in (None, [])}


def _of(done: int | None, run: Run, name: str) -> str | None:
    """`3 of 10` for a run that has not reached its end."""
    planned = run.options.get(name)
    if done is None:
        return None
    is_short = run.status != "finished" and isinstance(planned, int) and planned > done
    return f"{done:,} of {planned:,}" if is_short else f"{done:,}"


def _metrics(run: Run) -> str:
    rows = []
    for name, value in run.final.items():
        best = run.best(name)
        cells = [html.row_name(name), html.cell(value)]
        cells += [html.cell(best.value), html.cell(best.epoch)] if best else [html.cell(None)] * 2
        rows.append(cells)
    return html.table(("metric", "final", "best", "in epoch"), rows) if rows else ""


def _epochs(run: Run) -> str:
    names = run.metric_names
    rows = [
        [html.cell(line.get("epoch")), html.cell(line["step"])]
        + [html.cell(line.get(name)) for name in names]
        for line in run.epochs[-_MOST_EPOCHS:]
    ]
    title = "Numbers of each epoch"
    if len(run.epochs) > _MOST_EPOCHS:
        title = f"Numbers of the last {_MOST_EPOCHS} epochs"
    content = html.table(("epoch", "step", *names), rows) if rows else ""
    return html.details(title, content)


def _configuration(run: Run) -> list[str]:
    """The groups of config.json. An option that a recipe's setting repeats is shown once."""
    groups: dict[str, Mapping[str, Any]] = {"": {}}
    for name, value in run.config.items():
        if isinstance(value, Mapping):
            groups[name] = value
        elif name != CODE:
            groups[""] = {**groups[""], name: value}
    shown: dict[str, Any] = {}
    parts = []
    for title, values in groups.items():
        own = {k: v for k, v in values.items() if k not in shown or shown[k] != v}
        shown |= own
        if own:
            heading = f"<h3>{escape(title.replace('_', ' '))}</h3>" if title else ""
            parts.append(heading + html.settings(own))
    return parts


def _environment(run: Run) -> dict[str, Any]:
    found = dict(run.environment)
    packages, git, earlier = (found.pop(name, None) for name in ("packages", "git", "earlier"))
    found.pop(BETTER, None)
    if isinstance(packages, Mapping):
        found |= packages
    if isinstance(git, Mapping):
        changed = " (with changes)" if git.get("changed") else ""
        found["git commit"] = f"{str(git.get('commit'))[:12]}{changed}"
    if isinstance(earlier, list) and earlier:
        found["starts"] = len(earlier) + 1
    return found


def _commands(run: Run) -> str:
    path = shlex.quote(str(run.path))
    config = shlex.quote(str(run.path / CONFIG))
    lines = {}
    has_command = "recipe" in run.config or "model" in run.config
    if has_command:
        lines["Train again with the same settings, as a new run:"] = f"kerasdist fit {config}"
        again = f"kerasdist fit {config} --run-dir {path}"
        if run.status != "finished":
            lines["Continue this run:"] = again
        elif run.result.get("stopped"):  # More epochs would train nothing.
            purpose = "Train on from its weights, as a new run (this one stopped early):"
            lines[purpose] = f"kerasdist fit {config} --init-from {path}"
        elif run.options.get("steps") is not None:
            lines["Train for longer:"] = f"{again} --steps {2 * run.num_steps}"
        elif run.num_epochs is not None:
            lines["Train for longer:"] = f"{again} --epochs {2 * run.num_epochs}"
        lines["Evaluate it:"] = f"kerasdist evaluate {path}"
        lines["Open it in TensorBoard:"] = f"tensorboard --logdir {path}"
    else:
        call = f"kerasdist.fit(model, data, run_dir={str(run.path)!r}, ...)"
        lines[
            "Continue this run with the same call in Python (give more epochs to train longer):"
        ] = call
        load = f"model = kerasdist.load({str(run.path)!r})"
        lines["Load the trained model:"] = load
    lines["Export the model for other programs:"] = f"kerasdist export {path} --format saved_model"
    return html.commands(lines)
