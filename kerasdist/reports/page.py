"""report.html: the page about one run."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from html import escape
from typing import Any

from kerasdist.reports import answers, html
from kerasdist.reports.plots import Point, Series
from kerasdist.runs.file_names import CONFIG
from kerasdist.runs.metrics_log import curve
from kerasdist.runs.reading import Run

_MOST_EPOCHS = 100

# Of a longer setting, only the beginning is shown.
MOST_SHOWN = 500


def render(run: Run) -> str:
    """The HTML of a run's page."""
    return html.page(
        f"{run.name}: {run.path.name}",
        [
            _head(run),
            html.section("Summary", html.tiles(_summary(run)), _metrics(run)),
            html.section("Loss and metrics", html.grid(_metric_plots(run)), _epochs(run)),
            html.section(
                "Learning rate and throughput",
                html.grid([_learning_rate(run), _throughput(run), _input_wait(run)]),
            ),
            html.section("Confusion matrix", answers.confusion(run.evaluation)),
            html.section("Worst and best examples", answers.examples(run.evaluation)),
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
    if _dataset(run) == "synthetic":
        parts.append(
            '<p class="note">Trained on synthetic data: the numbers say nothing about the real '
            "dataset.</p>"
        )
    return "\n".join(parts)


def _foot() -> str:
    now = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    return f"<footer>Written by kerasdist, {now[:19]} UTC.</footer>"


def _dataset(run: Run) -> str | None:
    settings = run.config.get("settings")
    given = settings.get("source") if isinstance(settings, Mapping) else None
    return run.result.get("dataset") or (given if given != "auto" else None)


def _summary(run: Run) -> dict[str, Any]:
    values: dict[str, Any] = {"status": run.status, "dataset": _dataset(run)}
    best = run.best(run.monitor)
    if best is not None:
        values[f"best {run.monitor}, epoch {best.epoch}"] = best.value
    values |= {
        "epochs": _of(run.num_epochs, run, "epochs"),
        "steps": _of(run.num_steps, run, "steps"),
        "examples seen": run.result.get("examples_seen"),
        "examples/s": None if run.rate is None else f"{run.rate:,.0f}",
        "devices": run.devices,
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


def _metric_plots(run: Run) -> list[str]:
    names = run.metric_names
    plots = []
    for name in ["loss", *(n for n in names if n != "loss")]:
        if name.startswith("val_") and name.removeprefix("val_") in names:
            continue
        series = [
            Series("training", curve(run.epochs, name)),
            Series("validation", curve(run.epochs, f"val_{name}"), colour=1),
        ]
        if name.startswith("val_"):
            series = [Series("validation", curve(run.epochs, name), colour=1)]
        logged = curve(run.steps, name)
        if logged:
            series.insert(0, Series("training, each logged step", logged, is_faint=True))
        plots.append(html.curves(name, series))
    return plots


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


def _learning_rate(run: Run) -> str:
    return html.curves("learning rate", [Series("learning rate", _both(run, "learning_rate"))])


def _both(run: Run, name: str) -> list[Point]:
    """The values logged with steps and with epochs, sorted by step, each step once."""
    return sorted(
        dict([*curve(run.epochs, name), *curve(run.steps, name)]).items(), key=lambda p: p[0]
    )


def _throughput(run: Run) -> str:
    # The first logged step has nothing to measure yet. It is not a gap in the line.
    rates = [point for point in _both(run, "examples_per_second") if point[1] is not None]
    return html.curves("examples per second", [Series("examples per second", rates, colour=2)])


def _input_wait(run: Run) -> str:
    shares = [(x, None if y is None else 100 * y) for x, y in _both(run, "input_wait")]
    title = "waiting for input, % of the time"
    return html.curves(title, [Series(title, shares, colour=3)])


def _configuration(run: Run) -> list[str]:
    """The groups of config.json. An option that a recipe's setting repeats is shown once."""
    groups: dict[str, Mapping[str, Any]] = {"": {}}
    for name, value in run.config.items():
        if isinstance(value, Mapping):
            groups[name] = value
        else:
            groups[""] = {**groups[""], name: value}
    shown: dict[str, Any] = {}
    parts = []
    for title, values in groups.items():
        own = {k: v for k, v in values.items() if k not in shown or shown[k] != v}
        shown |= own
        if own:
            heading = f"<h3>{escape(title.replace('_', ' '))}</h3>" if title else ""
            parts.append(heading + html.facts({k: _shortened(v) for k, v in own.items()}))
    return parts


def _shortened(value: Any) -> Any:
    """What was learnt from texts holds thousands of words: config.json has them."""
    text = str(value)
    return (
        value if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}... (the rest is in config.json)"
    )


def _environment(run: Run) -> dict[str, Any]:
    found = dict(run.environment)
    packages, git, earlier = (found.pop(name, None) for name in ("packages", "git", "earlier"))
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
    lines["Export the model for other programs:"] = f"kerasdist export {path} --format onnx"
    return html.commands(lines)
