"""`kerasdist runs`: lists runs and compares them, without TensorFlow."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kerasdist.cli.options import parse_options
from kerasdist.cli.parser import Option
from kerasdist.errors import KerasdistError, closest
from kerasdist.reports import comparison, html, program_settings
from kerasdist.runs.atomic import as_json, write_text
from kerasdist.runs.catalog import is_run, runs_below
from kerasdist.runs.file_names import CONFIG
from kerasdist.runs.reading import Run, read

DEFAULT_FOLDER = Path("runs")
_COLUMNS = ("run", "status", "name", "epochs", "steps", "metrics", "examples/s", "started")
# Columns to leave out on a narrow terminal, in this order.
_LEAST_NEEDED = ("examples/s", "name", "steps", "epochs", "started")
_GAP = 2
# Behind a run on synthetic data.
_MARK = " (synthetic)"
# Characters of a setting that differs. --json prints all.
_MOST_OF_A_SETTING = 100
_DEFAULT_PAGE = "comparison.html"
OPTIONS = {
    "html": Option(
        str | None,
        None,
        "write an HTML page that compares settings, metrics and curves of the runs",
        hint=f"(without a name: {_DEFAULT_PAGE})",
    )
}


def parse(argv: list[str]) -> tuple[list[Path], dict[str, Any]]:
    """Parses `[DIR]` or `RUN RUN...`, with options in any place."""
    paths: list[Path] = []
    given: list[str] = []
    for i, argument in enumerate(argv):
        is_name = not argument.startswith("-")
        if is_name and i and argv[i - 1] == "--html":
            given[-1] = f"--html={argument}"
        elif is_name:
            paths.append(Path(argument).expanduser())
        else:
            given.append(argument)
    given = [f"--html={_DEFAULT_PAGE}" if each == "--html" else each for each in given]
    is_help = "-h" in given or "--help" in given
    prog = f"kerasdist runs{' [DIR | RUN RUN...]' if is_help else ''}"
    return paths, parse_options(OPTIONS, given, prog)


def runs(argv: list[str]) -> int:
    """`kerasdist runs [DIR]`, or `kerasdist runs RUN RUN...`."""
    paths, options = parse(argv)
    found = _find(paths)
    compares = len(paths) > 1
    page = options["html"]
    if page is not None:
        _write_page(Path(page).expanduser(), found)
    if options["json"]:
        differing = comparison.differences(found) if compares else {}
        for i, run in enumerate(found):
            settings = {name: values[i] for name, values in differing.items()}
            print(as_json({**_summary(run), **({"settings": settings} if compares else {})}))
    elif not options["quiet"]:
        if compares:
            _print_comparison(found)
        elif found:
            _print(_COLUMNS, [_row(run) for run in found])
            if any(run.is_synthetic for run in found):
                print(f"\n{_MARK.strip()}: on synthetic data, which says nothing about real data")
        else:
            print(f"no runs in {paths[0] if paths else DEFAULT_FOLDER}")
        if page is not None:
            print(f"comparison: {page}")
    return 0


def _find(paths: Sequence[Path]) -> list[Run]:
    """The runs that are named if there are several, else all runs in the folder, newest last."""
    if len(paths) > 1:
        for path in paths:
            if not is_run(path):
                raise _not_a_run(path)
        return [read(path) for path in paths]
    parent = folder_of_runs(paths[0]) if paths else DEFAULT_FOLDER
    found = [read(path, whole=False) for path in runs_below(parent)]
    return sorted(found, key=lambda run: (run.started or "", str(run.path)))


def folder_of_runs(path: Path) -> Path:
    """The folder, if it exists."""
    if not path.is_dir():
        guess = closest(path.name, _siblings(path))
        raise KerasdistError(
            f"The folder {str(path)!r} does not exist. Expected a folder with runs.{guess} Name "
            "another folder."
        )
    return path


def _siblings(path: Path) -> list[str]:
    try:
        return [entry.name for entry in path.parent.iterdir() if entry.is_dir()]
    except OSError:
        return []


def _not_a_run(path: Path) -> KerasdistError:
    problem = "is not a run" if path.exists() else "does not exist"
    guess = "" if path.exists() else closest(path.name, _siblings(path))
    return KerasdistError(
        f"{str(path)!r} {problem}. Expected the folders of runs to compare, which have a "
        f"{CONFIG} written by kerasdist.{guess} `kerasdist runs` lists all runs."
    )


def _write_page(path: Path, found: Sequence[Run]) -> None:
    if not found or len(found) > comparison.MOST_RUNS:
        raise KerasdistError(
            f"Received `--html` for {len(found)} runs. Expected 1 to {comparison.MOST_RUNS}. Name "
            "the runs to compare."
        )
    if path.is_dir() or (path.exists() and not _is_page(path)):
        what = "a folder" if path.is_dir() else "a file that kerasdist did not write"
        raise KerasdistError(
            f"Received `--html {path}`, which is {what}. It is not overwritten. Choose another "
            f"name, for example {_DEFAULT_PAGE}."
        )
    try:
        write_text(path, comparison.render([read(run.path) for run in found]))
    except OSError as error:
        raise KerasdistError(
            f"Received `--html {path}`, which cannot be written: {error.strerror}. Choose a file "
            "in a folder that you can write to."
        ) from error


def _is_page(path: Path) -> bool:
    """Whether kerasdist wrote the file."""
    try:
        with open(path, "rb") as file:
            return html.GENERATOR.encode() in file.read(2048)
    except OSError:
        return False


def _summary(run: Run) -> dict[str, Any]:
    """What `--json` prints about a run."""
    best = run.best(run.monitor)
    return {
        "run": str(run.path),
        "status": run.status,
        "name": run.name,
        "dataset": run.dataset,
        "epochs": run.num_epochs,
        "steps": run.num_steps,
        "metrics": run.final,
        "monitor": run.monitor,
        "best": None if best is None else vars(best),
        "examples_per_second": run.rate,
        "devices": run.devices,
        "started": run.started,
    }


def _row(run: Run) -> list[str]:
    # Only those of the validation, if there are any: the table has little room.
    chosen = {name: value for name, value in run.final.items() if name.startswith("val_")}
    values = chosen or run.final
    return [
        f"{run.path}{_MARK if run.is_synthetic else ''}",
        run.status,
        run.name,
        html.text_of(run.num_epochs),
        html.text_of(run.num_steps),
        " ".join(f"{name}={html.text_of(value)}" for name, value in values.items()) or "–",
        "–" if run.rate is None else f"{run.rate:,.0f}",
        run.started_here or "–",
    ]


def _print_comparison(found: Sequence[Run]) -> None:
    names = comparison.labels([run.path for run in found])
    rows = [["status", *(run.status for run in found)]]
    rows += [["epochs", *(html.text_of(run.num_epochs) for run in found)]]
    rows += [["steps", *(html.text_of(run.num_steps) for run in found)]]
    if any(run.is_synthetic for run in found):
        rows += [["dataset", *(run.dataset or "–" for run in found)]]
    for metric, values in comparison.metrics(found).items():
        best = comparison.best_among(found, metric, values)
        texts = [
            f"{html.text_of(value)}{' *' if is_best else ''}"
            for value, is_best in zip(values, best, strict=True)
        ]
        rows.append([metric, *texts])
    rows.append(["examples/s", *("–" if r.rate is None else f"{r.rate:,.0f}" for r in found)])
    _print(("metric (* the best)", *names), rows)
    if not all(comparison.ranked(found)):
        print(f"\n{comparison.UNRANKED}")
    print()
    differing = comparison.differences(found)
    unrecorded = program_settings.unrecorded(names, found)
    if unrecorded:
        print(unrecorded)
    if not differing:
        if not unrecorded:
            print("no setting differs")
        return
    rows = [
        [name, *(html.text_of(html.beginning(value, _MOST_OF_A_SETTING)) for value in values)]
        for name, values in differing.items()
    ]
    _print(("setting that differs", *names), rows)


def _print(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints aligned columns; a narrow terminal gets only the most useful ones."""
    kept = list(range(len(columns)))
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    room = shutil.get_terminal_size().columns
    for name in _LEAST_NEEDED if sys.stdout.isatty() else ():
        if sum(widths[i] + _GAP for i in kept) - _GAP > room and name in columns:
            kept.remove(columns.index(name))
    for row in (columns, *rows):
        print((" " * _GAP).join(row[i].ljust(widths[i]) for i in kept).rstrip())
