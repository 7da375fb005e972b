"""`kerasdist evaluate`: computes a run's metrics; for a classifier also per class and group."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
from rich.console import Console
from rich.table import Table

from kerasdist.cli import folder_choice
from kerasdist.cli.fit_arguments import parse_fit
from kerasdist.cli.job import Job, names_of
from kerasdist.errors import KerasdistError, warn
from kerasdist.evaluation.classes import classes_of_run
from kerasdist.evaluation.confusion import MOST_CLASSES, Counts, Row, Tally, measure
from kerasdist.evaluation.views import averaging
from kerasdist.model_files.loading import load
from kerasdist.phases.phase import phase
from kerasdist.recipes import extras
from kerasdist.recipes.recipe import Recipe
from kerasdist.runs import architecture
from kerasdist.runs.atomic import as_json
from kerasdist.runs.file_names import MODEL
from kerasdist.training import api
from kerasdist.training.progress.reporter import as_text

# A wider matrix does not fit on a screen, so the most frequent mistakes are listed instead.
MOST_COLUMNS = 20
NUM_MISTAKES = 10


def evaluate(run: Path, options: dict[str, Any]) -> int:
    """`kerasdist evaluate`."""
    names = names_of(options)  # First, because building a model fixes the logical CPUs.
    moved = [] if options["data_dir"] is None else ["--data-dir", options["data_dir"]]
    moved += ["--skip-bad"] * options["skip_bad"]
    job = Job(parse_fit([str(run), *moved], learns_again=False))
    views = extras.views(job.recipe) if options["tta"] else None
    data = _data(job, run, options["split"])
    if (skipped := extras.description(job.recipe).get("skipped")) and not options["quiet"]:
        print(f"kerasdist: left out {skipped}", file=sys.stderr)
    with phase("loading the model"):
        model = load(run, options["which"])
    if folder_choice.is_edited(job, run):
        warn(
            "the code was changed since the run was trained: the data, the loss and the metrics "
            "are those of the code as it is now"
        )
    arguments = {name: options[name] for name in ("batch_size", "steps", "allow_nan")}
    arguments["devices"] = names
    tally = tally_for(model, run, job.recipe, options["split"])
    results, counts = measure(model, data, tally, **arguments)
    with_views = {}
    if views is not None:
        with phase("with test-time augmentation"), averaging(model, views):
            with_views = api.evaluate(model, data, **arguments)
    if options["json"]:
        fields = _fields(counts) if counts is not None else {}
        print(as_json({**results, **fields, **({"tta": with_views} if views else {})}))
    elif not options["quiet"]:
        print(f"{as_text(results)} ({_scope(job, data, tally, options)})")
        if views is not None:
            print(f"with test-time augmentation: {as_text(with_views)}")
        if counts is not None:
            print_counts(counts)
    return 0


def _scope(job: Job, data: Any, tally: Tally | None, options: dict[str, Any]) -> str:
    """Which data and which model the metrics are of."""
    if tally is not None and tally.applies:
        found = f"{int(tally.result()):,} examples"
    else:
        steps = options["steps"]
        found = job.describe(data) if steps is None else f"{steps:,} batches"
    return f"{options['split']} data, {found.removeprefix('data: ')}, {options['which']} model"


def _data(job: Job, run: Path, split: str) -> Any:
    data = job.build_data(split)
    if data is None:
        raise KerasdistError(
            f"There is no {split} data for the run {str(run)!r}. Expected a folder for it, such as "
            f"{split!r} beside 'train'. Use another `--split`, or name a folder with `--data-dir`."
        )
    return data


def tally_for(model: keras.Model, run: Path, recipe: Recipe | None, split: str) -> Tally | None:
    """Counts the answers of a classifier; None if the run's model is not one."""
    spec = architecture.read_spec(run / MODEL)
    classes, _ = classes_of_run(model, spec, extras.class_names(recipe))
    if classes is None or len(classes.names) > MOST_CLASSES:
        return None
    return Tally(classes, extras.groups(recipe, split))


def _fields(counts: Counts) -> dict[str, Any]:
    return {
        "classes": [_row(row) for row in counts.by_class()],
        "confusion": counts.matrix,
        "groups": {kind: [_row(row) for row in rows] for kind, rows in counts.groups.items()},
    }


def _row(row: Row) -> dict[str, Any]:
    return {"name": row.name, "accuracy": row.accuracy, **vars(row)}


def print_counts(counts: Counts) -> None:
    """Prints tables on a terminal, plain lines elsewhere."""
    console = Console(markup=False, emoji=False)  # Names may hold brackets and colons.
    for kind, rows in (("class", counts.by_class()), *counts.groups.items()):
        if console.is_terminal:
            _print_table(console, kind, rows)
        else:
            for row in rows:
                print(f"{kind} {row.name}: {_share(row)}")
    if len(counts.names) > MOST_COLUMNS:
        for label, answer, count in counts.mistakes(NUM_MISTAKES):
            print(f"mistake {label} -> {answer}: {count}")
    else:
        _print_matrix(console, counts)


def _print_matrix(console: Console, counts: Counts) -> None:
    title = "confusion (rows: the label, columns: the answer)"
    lines = [
        ["", *counts.names],
        *(
            [name, *(str(count) for count in row)]
            for name, row in zip(counts.names, counts.matrix.tolist(), strict=True)
        ),
    ]
    if console.is_terminal:
        # Above the table: as its title, it would be broken at the width of the table.
        console.print(title, style="italic", highlight=False)
        table = Table()
        for column in lines[0]:
            table.add_column(column, justify="right" if column else "left", no_wrap=False)
        for line in lines[1:]:
            table.add_row(*line)
        console.print(table)
        return
    print(title)
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    for name, *cells in lines:
        numbers = (cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        print(name.ljust(widths[0]), *numbers)


def _share(row: Row) -> str:
    if row.accuracy is None:
        return "no examples"
    return f"accuracy = {row.accuracy:.4g} ({row.correct} of {row.examples})"


def _print_table(console: Console, kind: str, rows: Sequence[Row]) -> None:
    table = Table()
    for column in (kind, "accuracy", "right", "examples"):
        table.add_column(column, justify="left" if column == kind else "right")
    for row in rows:
        accuracy = "" if row.accuracy is None else f"{row.accuracy:.2%}"
        table.add_row(row.name, accuracy, str(row.correct), str(row.examples))
    console.print(table)
