"""`kerasdist runs`: lists runs, and compares them. Without TensorFlow."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from kerasdist.cli.options import parse_options
from kerasdist.cli.parser import Option
from kerasdist.errors import KerasdistError, closest
from kerasdist.reports import comparison, html
from kerasdist.runs.atomic import as_json, write_text
from kerasdist.runs.catalog import is_run
from kerasdist.runs.file_names import CONFIG
from kerasdist.runs.reading import Run, read

DEFAULT_FOLDER = Path("runs")
# Runs lie in runs/NAME/NNNN: what is far below a folder is something else's.
_DEEPEST = 5
_COLUMNS = ("run", "status", "name", "epochs", "steps", "metrics", "examples/s", "started")
# Those that a narrow terminal leaves out, one after the other.
_MAY_MISS = ("examples/s", "name", "steps", "epochs", "started")
_GAP = 2
_DEFAULT_PAGE = "comparison.html"
OPTIONS = {
    "html": Option(
        str | None,
        None,
        "write a page that compares the runs: settings that differ, metrics and curves",
        hint=f"(without a name: {_DEFAULT_PAGE})",
    )
}


def parse(argv: list[str]) -> tuple[list[Path], dict[str, Any]]:
    """`kerasdist runs [DIR]`, or `kerasdist runs RUN RUN...`, with options anywhere."""
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


def show(paths: Sequence[Path], options: dict[str, Any]) -> int:
    """`kerasdist runs`."""
    found = _runs(paths)
    compares = len(paths) > 1
    page = options["html"]
    if page is not None:
        _write_page(Path(page).expanduser(), found)
    if options["json"]:
        differing = comparison.differences(found) if compares else {}
        for i, run in enumerate(found):
            settings = {name: values[i] for name, values in differing.items()}
            print(as_json({**summary(run), **({"settings": settings} if compares else {})}))
    elif not options["quiet"]:
        if compares:
            _print_comparison(found)
        elif found:
            _print(_COLUMNS, [_row(run) for run in found])
        else:
            print(f"no runs in {paths[0] if paths else DEFAULT_FOLDER}")
        if page is not None:
            print(f"the comparison is {page}")
    return 0


def _runs(paths: Sequence[Path]) -> list[Run]:
    """The runs themselves where several are named, else those below the folder, the newest last."""
    if len(paths) > 1:
        for path in paths:
            if not is_run(path):
                raise _no_run(path)
        return [read(path) for path in paths]
    folder = paths[0] if paths else DEFAULT_FOLDER
    if paths and not folder.is_dir():
        guess = closest(folder.name, _siblings(folder))
        raise KerasdistError(
            f"Received the folder {str(folder)!r}, which does not exist. Expected one with runs in "
            f"it.{guess} Name another."
        )
    found = [read(path, whole=False) for path in below(folder)]
    return sorted(found, key=lambda run: (run.started or "", str(run.path)))


def below(folder: Path, depth: int = 0) -> Iterator[Path]:
    """The runs in a folder and its folders; nothing inside a run, behind a link or hidden."""
    if is_run(folder):
        yield folder
        return
    try:
        with os.scandir(folder) as entries:
            inner = sorted(
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
            )
    except OSError:  # Not ours to read.
        return
    for name in inner if depth < _DEEPEST else ():
        yield from below(folder / name, depth + 1)


def _siblings(path: Path) -> list[str]:
    try:
        return [entry.name for entry in path.parent.iterdir() if entry.is_dir()]
    except OSError:
        return []


def _no_run(path: Path) -> KerasdistError:
    what = "is no run" if path.exists() else "does not exist"
    guess = "" if path.exists() else closest(path.name, _siblings(path))
    return KerasdistError(
        f"Received {str(path)!r}, which {what}. Expected runs to compare: folders with a "
        f"{CONFIG} of ours.{guess} `kerasdist runs` lists them."
    )


def _write_page(path: Path, found: Sequence[Run]) -> None:
    if not found or len(found) > comparison.MOST_RUNS:
        raise KerasdistError(
            f"Received `--html` for {len(found)} runs. Expected 1 to {comparison.MOST_RUNS}. Name "
            "the runs to compare."
        )
    if path.is_dir() or (path.exists() and not _is_ours(path)):
        what = "a folder" if path.is_dir() else "a file that kerasdist did not write"
        raise KerasdistError(
            f"Received `--html {path}`, which is {what}. Expected the name of a page to write. "
            "Choose another, for example comparison.html."
        )
    try:
        write_text(path, comparison.render([read(run.path) for run in found]))
    except OSError as error:
        raise KerasdistError(
            f"Received `--html {path}`, which cannot be written: {error.strerror}. Expected a file "
            "in a folder one can write to. Choose another."
        ) from error


def _is_ours(path: Path) -> bool:
    try:
        with open(path, "rb") as file:
            return html.GENERATOR.encode() in file.read(2048)
    except OSError:
        return False


def summary(run: Run) -> dict[str, Any]:
    """A run as `--json` prints it."""
    best = run.best(run.monitor)
    return {
        "run": str(run.path),
        "status": run.status,
        "name": run.name,
        "dataset": run.result.get("dataset"),
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
    # Of validation where there is one: the table has little room.
    chosen = {name: value for name, value in run.final.items() if name.startswith("val_")}
    values = chosen or run.final
    return [
        str(run.path),
        run.status,
        run.name,
        html.text_of(run.num_epochs),
        html.text_of(run.num_steps),
        " ".join(f"{name}={html.text_of(value)}" for name, value in values.items()) or "–",
        "–" if run.rate is None else f"{run.rate:,.0f}",
        (run.started or "–")[:16].replace("T", " "),
    ]


def _print_comparison(found: Sequence[Run]) -> None:
    names = comparison.labels([run.path for run in found])
    rows = [["status", *(run.status for run in found)]]
    rows += [["epochs", *(html.text_of(run.num_epochs) for run in found)]]
    rows += [["steps", *(html.text_of(run.num_steps) for run in found)]]
    for metric, values in comparison.metrics(found).items():
        best = comparison.best_of(metric, values)
        texts = [f"{html.text_of(v)}{' *' if v is not None and v == best else ''}" for v in values]
        rows.append([metric, *texts])
    rows.append(["examples/s", *("–" if r.rate is None else f"{r.rate:,.0f}" for r in found)])
    _print(("metric (* the best)", *names), rows)
    print()
    differing = comparison.differences(found)
    if not differing:
        print("no setting differs")
        return
    rows = [[name, *(html.text_of(v) for v in values)] for name, values in differing.items()]
    _print(("setting that differs", *names), rows)


def _print(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Aligned lines; on a narrow terminal without the columns that are missed least."""
    kept = list(range(len(columns)))
    widths = [max(map(len, column)) for column in zip(columns, *rows, strict=True)]
    room = shutil.get_terminal_size().columns
    for name in _MAY_MISS if sys.stdout.isatty() else ():
        if sum(widths[i] + _GAP for i in kept) - _GAP > room and name in columns:
            kept.remove(columns.index(name))
    for row in (columns, *rows):
        print((" " * _GAP).join(row[i].ljust(widths[i]) for i in kept).rstrip())
