"""The options of the commands on a trained run: `evaluate`, `predict` and `export`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from kerasdist.cli.options import (
    OUTPUT_OPTIONS,
    PLACEMENT,
    RUN_OPTIONS,
    count_option,
    parse_options,
)
from kerasdist.cli.parser import Option, Options
from kerasdist.errors import KerasdistError, closest
from kerasdist.model_files import export_target
from kerasdist.recipes.class_file import REQUIRED
from kerasdist.runs.catalog import check_finished, check_run, read_config
from kerasdist.runs.results.kept_models import rank_of

_WHICH = Option(
    str,
    "final",
    "which model: best (by the run's monitor), best-2 and so on (of --keep-best), last (the newest "
    "checkpoint) or final",
    expected="best, best-2 and so on (of a run with --keep-best), last or final",
    example="best",
    valid=lambda value: value in ("last", "final") or rank_of(value) is not None,
    guess=lambda text: closest(text, ("best", "last", "final")),
)
EVALUATE_OPTIONS: Options = {
    "which": _WHICH,
    "split": Option(
        Literal["train", "validation", "test", "all"],
        "validation",
        "train or validation; of a folder of your own also test, or all files",
    ),
    "data_dir": Option(
        str | None, None, "the folder with the data, if it was moved, or one with other data"
    ),
    "skip_bad": Option(
        bool, False, "leave out files and rows that cannot be read, instead of stopping"
    ),
    "steps": count_option(None, "batches to read; all by default"),
    "tta": Option(
        bool, False, "evaluate again with test-time augmentation, if the recipe has views"
    ),
    **{k: RUN_OPTIONS[k] for k in ("batch_size", "allow_nan", *PLACEMENT)},
}
PREDICT_OPTIONS: Options = {
    "which": _WHICH,
    "top": count_option(3, "how many classes to list per file, the most probable first", "1"),
    "skip_bad": Option(
        bool, False, "leave out files that cannot be read, and name them, instead of stopping"
    ),
    "output": Option(
        str | None, None, "write the answers to this new .csv file instead of printing them"
    ),
    **{k: RUN_OPTIONS[k] for k in ("batch_size", *PLACEMENT)},
}
EXPORT_OPTIONS: Options = {
    "format": Option(
        Literal["keras", "saved_model", "litert", "onnx"],
        REQUIRED,
        "keras (a .keras file), saved_model (TensorFlow), litert (.tflite) or onnx",
        example="saved_model",
        synonyms={"tflite": "litert", "savedmodel": "saved_model"},
    ),
    "output": Option(
        str | None,
        None,
        "file or folder to write, which must not exist yet",
        hint="(default: export/ in the run's folder)",
    ),
    "which": _WHICH,
}


def parse_evaluate(argv: list[str]) -> tuple[Path, dict[str, Any]]:
    """`kerasdist evaluate RUN [options]`."""
    run, _, values = _parse_run(EVALUATE_OPTIONS, argv, "evaluate")
    run = _checked(run, values)
    if values["data_dir"] is not None:
        _check_data_dir(run, values["data_dir"])
    return run, values


def _check_data_dir(run: Path, data_dir: str) -> None:
    """Refuses `--data-dir` for a run whose recipe reads no folder."""
    settings = (read_config(run) or {}).get("settings", {})
    if "data_dir" not in settings:
        raise KerasdistError(
            f"Received `--data-dir {data_dir}` for the run {str(run)!r}, whose data is not a "
            "folder. Expected the run of a recipe with the setting `data_dir`. Leave the option "
            "out."
        )


def parse_predict(argv: list[str]) -> tuple[Path, list[Path], dict[str, Any]]:
    """`kerasdist predict RUN FILE... [options]`."""
    run, others, values = _parse_run(PREDICT_OPTIONS, argv, "predict", " FILE...")
    if not others:
        raise KerasdistError(
            f"Received the run {str(run)!r} and no file. Expected `kerasdist predict RUN FILE...`. "
            "Name files, or a folder with files, after the run."
        )
    files = [Path(other).expanduser() for other in others]
    for path in files:
        if not path.exists():
            raise KerasdistError(
                f"The file {str(path)!r} does not exist. Expected a file or a folder. Check the "
                "name."
            )
    if values["output"] is not None:
        _check_output(values["output"])
    return _checked(run, values), files, values


def _check_output(output: str) -> None:
    """Refuses a file for answers that cannot be written."""
    path = Path(output).expanduser()
    if path.exists():
        raise KerasdistError(
            f"Received `--output {output}`, which exists. Expected a new file, because nothing is "
            "overwritten. Choose another name, or remove the file."
        )
    if path.suffix.lower() != ".csv" or not path.parent.is_dir():
        raise KerasdistError(
            f"Received `--output {output}`. Expected a name that ends in .csv, in a folder that "
            "exists. Use for example `--output answers.csv`."
        )


def parse_export(argv: list[str]) -> tuple[Path, export_target.Target, dict[str, Any]]:
    """`kerasdist export RUN --format F [options]`."""
    run, _, values = _parse_run(EXPORT_OPTIONS, argv, "export")
    _checked(run, values)
    return run, export_target.target(run, values["format"], values["output"]), values


def _checked(run: Path, values: dict[str, Any]) -> Path:
    """The run, if it has the model that is asked for."""
    if values["which"] == "final":
        check_finished(run)
    else:
        check_run(run)
    return run


def _parse_run(
    options: Options, argv: list[str], command: str, files: str = ""
) -> tuple[Path, list[str], dict[str, Any]]:
    """Parses `RUN [options]`, or with `files` also `RUN FILE... [options]` in any order.

    Returns:
        `(RUN, files, values of the options)`.
    """
    if argv and argv[0] in ("-h", "--help"):
        parse_options(options, ["--help"], f"kerasdist {command} RUN{files}")
    if not argv or argv[0].startswith("-"):
        before = f" before {argv[0]!r}" if argv else ""
        raise KerasdistError(
            f"The run is missing{before}. Expected `kerasdist {command} RUN{files} [options]`. "
            "Name the run's folder first, for example runs/cifar10/0001."
        )
    run, rest = argv[0], argv[1:]
    prog = f"kerasdist {command} {run}"
    others, given = _separate({**options, **OUTPUT_OPTIONS}, rest)
    values = parse_options(options, given, prog)
    if others and not files:
        parse_options(options, others, prog)  # Refuses them.
    return Path(run).expanduser(), others, values


def _separate(options: Options, argv: list[str]) -> tuple[list[str], list[str]]:
    """`(file names, options with their values)`. After `--`, everything is a file name."""
    with_value = {f"--{k.replace('_', '-')}" for k, v in options.items() if v.kind is not bool}
    others: list[str] = []
    given: list[str] = []
    rest = iter(argv)
    for argument in rest:
        if argument == "--":
            others += rest
        elif not argument.startswith("-") or argument == "-":
            others.append(argument)
        else:
            given.append(argument)
            if argument.replace("_", "-") in with_value:
                given += [value for value in (next(rest, None),) if value is not None]
    return others, given
