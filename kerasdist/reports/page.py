"""The page about one run."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from kerasdist.reports import html as frame
from kerasdist.reports.plots import Series
from kerasdist.runs.reading import Run, curve

# A matrix of more classes is drawn instead of written.
MOST_COLUMNS = 20
NUM_MISTAKES = 10
_MOST_EPOCHS = 100
_BASE64 = re.compile(r"[A-Za-z0-9+/]+={0,2}")


def render(run: Run) -> str:
    """report.html of a run."""
    return frame.page(
        f"{run.name}: {run.path.name}",
        [
            _head(run),
            frame.section("Summary", frame.tiles(_summary(run)), _metrics(run)),
            frame.section("Loss and metrics", frame.grid(_metric_plots(run)), _epochs(run)),
            frame.section(
                "Learning rate and throughput",
                frame.grid([_learning_rate(run), _throughput(run), _input_wait(run)]),
            ),
            frame.section("Confusion matrix", _confusion(run.evaluation)),
            frame.section("Worst and best examples", _examples(run.evaluation)),
            frame.section("Configuration", *_configuration(run)),
            frame.section("Environment", frame.facts(_environment(run))),
            frame.section("Commands", _commands(run)),
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
            '<p class="note">Trained on synthetic data: its numbers say nothing about the real '
            "data set.</p>"
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
        values[f"best {run.monitor}, of epoch {best.epoch}"] = best.value
    values |= {
        "epochs": _of(run.num_epochs, run, "epochs"),
        "steps": _of(run.num_steps, run, "steps"),
        "examples seen": run.result.get("examples_seen"),
        "examples/s": None if run.rate is None else f"{run.rate:,.0f}",
        "devices": run.devices,
    }
    return {name: value for name, value in values.items() if value not in (None, [])}


def _of(done: int | None, run: Run, name: str) -> str | None:
    """`3 of 10` for a run that did not get to its end."""
    planned = run.options.get(name)
    if done is None:
        return None
    is_short = run.status != "finished" and isinstance(planned, int) and planned > done
    return f"{done:,} of {planned:,}" if is_short else f"{done:,}"


def _metrics(run: Run) -> str:
    rows = []
    for name, value in run.final.items():
        best = run.best(name)
        cells = [frame.row_name(name), frame.cell(value)]
        cells += (
            [frame.cell(best.value), frame.cell(best.epoch)] if best else [frame.cell(None)] * 2
        )
        rows.append(cells)
    return frame.table(("metric", "final", "best", "of epoch"), rows) if rows else ""


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
        plots.append(frame.curves(name, series))
    return plots


def _epochs(run: Run) -> str:
    names = run.metric_names
    rows = [
        [frame.cell(line.get("epoch")), frame.cell(line["step"])]
        + [frame.cell(line.get(name)) for name in names]
        for line in run.epochs[-_MOST_EPOCHS:]
    ]
    title = "Numbers of each epoch"
    if len(run.epochs) > _MOST_EPOCHS:
        title = f"Numbers of the last {_MOST_EPOCHS} epochs"
    content = frame.table(("epoch", "step", *names), rows) if rows else ""
    return frame.details(title, content)


def _learning_rate(run: Run) -> str:
    return frame.curves("learning rate", [Series("learning rate", _both(run, "learning_rate"))])


def _both(run: Run, name: str) -> list[tuple[float, float | None]]:
    """Of steps and epochs, by step; each step once."""
    return sorted(
        dict([*curve(run.epochs, name), *curve(run.steps, name)]).items(), key=lambda p: p[0]
    )


def _throughput(run: Run) -> str:
    # The first reading has nothing to measure yet: that is no gap.
    rates = [point for point in _both(run, "examples_per_second") if point[1] is not None]
    return frame.curves("examples a second", [Series("examples a second", rates, colour=2)])


def _input_wait(run: Run) -> str:
    shares = [(x, None if y is None else 100 * y) for x, y in _both(run, "input_wait")]
    title = "waiting for input, % of the time"
    return frame.curves(title, [Series(title, shares, colour=3)])


def _confusion(evaluation: Mapping[str, Any]) -> str:
    matrix: Any = evaluation.get("confusion")
    names: Any = evaluation.get("classes")
    if not _is_matrix(names, matrix):
        return ""
    names = [str(name) for name in names]
    about = (
        f'<p class="soft">{escape(_of_which(evaluation))} Rows: the label; columns: the answer.</p>'
    )
    if len(names) > MOST_COLUMNS:
        return about + _heat(names, matrix) + _mistakes(names, matrix)
    head = "".join(f"<th><span>{escape(name)}</span></th>" for name in names)
    rows = []
    for name, row in zip(names, matrix, strict=True):
        total = sum(row) or 1
        cells = "".join(
            f'<td style="--share:{0.75 * count / total:.2f}">{count or ""}</td>' for count in row
        )
        rows.append(f"<tr>{frame.row_name(name)}{cells}</tr>")
    return (
        f'{about}<div class="scroll"><table class="matrix"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>{_mistakes(names, matrix)}"
    )


def _is_matrix(names: Any, matrix: Any) -> bool:
    return (
        isinstance(names, list)
        and isinstance(matrix, list)
        and len(names) == len(matrix) > 0
        and all(
            isinstance(row, list)
            and len(row) == len(names)
            and all(isinstance(count, int) and count >= 0 for count in row)
            for row in matrix
        )
    )


def _of_which(evaluation: Mapping[str, Any]) -> str:
    count = frame.text_of(evaluation.get("examples"))
    which = "all" if evaluation.get("is_whole") else "the first"
    after = evaluation.get("steps")
    when = f" after step {frame.text_of(after)}" if after is not None else ""
    return f"Of {which} {count} validation examples{when}."


def _heat(names: Sequence[str], matrix: Sequence[Sequence[int]]) -> str:
    size = len(names)
    cells = [
        f'<rect x="{j}" y="{i}" width="1" height="1" fill-opacity="{count / (sum(row) or 1):.2f}">'
        f"<title>{escape(f'{names[i]} → {names[j]}: {count}')}</title></rect>"
        for i, row in enumerate(matrix)
        for j, count in enumerate(row)
        if count
    ]
    return (
        f'<svg class="heat" viewBox="0 0 {size} {size}" role="img" aria-label="confusion matrix">'
        f"{''.join(cells)}</svg>"
    )


def _mistakes(names: Sequence[str], matrix: Sequence[Sequence[int]]) -> str:
    wrong = [
        (count, i, j)
        for i, row in enumerate(matrix)
        for j, count in enumerate(row)
        if i != j and count
    ]
    wrong.sort(key=lambda each: (-each[0], each[1], each[2]))
    rows = [
        [frame.cell(names[i]), frame.cell(names[j]), frame.cell(count)]
        for count, i, j in wrong[:NUM_MISTAKES]
    ]
    content = frame.table(("label", "answer", "examples"), rows, "words") if rows else ""
    return frame.details("The most frequent mistakes", content)


def _examples(evaluation: Mapping[str, Any]) -> str:
    parts = []
    for kind, title in (("worst", "Highest loss"), ("best", "Lowest loss")):
        found = evaluation.get(kind)
        found = found if isinstance(found, list) else []
        each = [_example(example) for example in found if isinstance(example, Mapping)]
        if each:
            parts.append(f'<h3>{title}</h3><div class="examples">{"".join(each)}</div>')
    return "\n".join(parts)


def _example(example: Mapping[str, Any]) -> str:
    picture = example.get("png")
    image = ""
    if isinstance(picture, str) and _BASE64.fullmatch(picture):
        number = frame.text_of(example.get("position"))
        image = f'<img alt="example {escape(number)}" src="data:image/png;base64,{picture}">'
    label, answer = (str(example.get(name)) for name in ("label", "answer"))
    kind = "right" if label == answer else "wrong"
    share = _percent(example.get("probability"))
    lines = [
        f"label <b>{escape(label)}</b>",
        f'answer <b class="{kind}">{escape(answer)}</b>{share}',
    ]
    if label != answer:
        lines.append(f"label’s share{_percent(example.get('label_probability'))}")
    lines.append(f'<span class="soft">loss {escape(frame.text_of(example.get("loss")))}</span>')
    return f"<figure>{image}{'<br>'.join(lines)}</figure>"


def _percent(value: Any) -> str:
    return f" {value:.1%}" if isinstance(value, (int, float)) else ""


def _configuration(run: Run) -> list[str]:
    """The groups of config.json; an option that a recipe's setting repeats is shown once."""
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
            parts.append(heading + frame.facts(own))
    return parts


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
    config = shlex.quote(str(run.path / "config.json"))
    lines = {}
    has_command = "recipe" in run.config or "model" in run.config
    if has_command:
        lines["Train the same again, as a new run:"] = f"kerasdist fit {config}"
        again = f"kerasdist fit {config} --run-dir {path}"
        if run.status != "finished":
            lines["Continue this run:"] = again
        elif run.options.get("steps") is not None:
            lines["Go on for longer:"] = f"{again} --steps {2 * run.num_steps}"
        elif run.num_epochs is not None:
            lines["Go on for longer:"] = f"{again} --epochs {2 * run.num_epochs}"
        lines["Evaluate it:"] = f"kerasdist evaluate {path}"
        lines["Look at it in TensorBoard:"] = f"tensorboard --logdir {path}"
    else:
        call = f"kerasdist.fit(model, data, run_dir={str(run.path)!r}, ...)"
        lines["Continue this run, by the same call in Python (with more epochs: go on longer):"] = (
            call
        )
        load = f"model = kerasdist.load({str(run.path)!r})"
        lines["Load the trained model:"] = load
    lines["Export the model for other programs:"] = f"kerasdist export {path} --format onnx"
    return frame.commands(lines)
