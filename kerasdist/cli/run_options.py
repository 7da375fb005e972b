"""Options of the commands on a run that is there: evaluate, predict, export."""

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
from kerasdist.errors import KerasdistError
from kerasdist.recipes.class_file import REQUIRED

_WHICH = Option(
    Literal["best", "last", "final"],
    "final",
    "best (by the run's monitor), last (the newest checkpoint) or final",
)
EVALUATE_OPTIONS: Options = {
    "which": _WHICH,
    "split": Option(Literal["train", "validation"], "validation", "train or validation"),
    "steps": count_option(None, "batches to read; all by default"),
    "tta": Option(bool, False, "also with test-time augmentation, where the recipe has views"),
    **{k: RUN_OPTIONS[k] for k in ("batch_size", "allow_nan", *PLACEMENT)},
}
PREDICT_OPTIONS: Options = {
    "which": _WHICH,
    "top": count_option(3, "classes that are listed for each file, the likeliest first", "1"),
    **{k: RUN_OPTIONS[k] for k in ("batch_size", *PLACEMENT)},
}
EXPORT_OPTIONS: Options = {
    "format": Option(
        Literal["keras", "saved_model", "litert", "onnx"],
        REQUIRED,
        "keras (one .keras file), saved_model (TensorFlow), litert (.tflite) or onnx",
        example="saved_model",
    ),
    "output": Option(
        str | None,
        None,
        "file or folder to write, which must not exist",
        hint="(default: export/ in the run's folder)",
    ),
    "which": _WHICH,
}


def parse_evaluate(argv: list[str]) -> tuple[Path, dict[str, Any]]:
    """`kerasdist evaluate RUN [options]`."""
    run, others, values = _parse_run(EVALUATE_OPTIONS, argv, "evaluate")
    if others:
        # The parser's own words about a text that is no option.
        parse_options(EVALUATE_OPTIONS, others, f"kerasdist evaluate {run}")
    return run, values


def parse_predict(argv: list[str]) -> tuple[Path, list[Path], dict[str, Any]]:
    """`kerasdist predict RUN FILE... [options]`."""
    run, others, values = _parse_run(PREDICT_OPTIONS, argv, "predict", " FILE...")
    if not others:
        raise KerasdistError(
            f"Received the run {str(run)!r} and no file. Expected `kerasdist predict RUN FILE...`. "
            "Name files after the run, or a folder of them."
        )
    files = [Path(other).expanduser() for other in others]
    for path in files:
        if not path.exists():
            raise KerasdistError(
                f"Received the file {str(path)!r}, which does not exist. Expected a file or a "
                "folder. Check the name."
            )
    return run, files, values


def parse_export(argv: list[str]) -> tuple[Path, dict[str, Any]]:
    """`kerasdist export RUN --format F [options]`."""
    run, others, values = _parse_run(EXPORT_OPTIONS, argv, "export")
    if others:
        parse_options(EXPORT_OPTIONS, others, f"kerasdist export {run}")
    return run, values


def _parse_run(
    own: Options, argv: list[str], command: str, files: str = ""
) -> tuple[Path, list[str], dict[str, Any]]:
    """`(RUN, what else is no option, values)` of a command on a run."""
    if argv and argv[0] in ("-h", "--help"):
        parse_options(own, ["--help"], f"kerasdist {command} RUN{files}")
    if not argv or argv[0].startswith("-"):
        received = repr(argv[0]) if argv else "nothing"
        raise KerasdistError(
            f"Received {received} where the run belongs. Expected `kerasdist {command} RUN{files} "
            "[options]`. Name the run's folder first, for example runs/cifar10/0001."
        )
    others, given = _apart({**own, **OUTPUT_OPTIONS}, argv[1:])
    values = parse_options(own, given, f"kerasdist {command} {argv[0]}")
    return Path(argv[0]).expanduser(), others, values


def _apart(options: Options, argv: list[str]) -> tuple[list[str], list[str]]:
    """`(what is no option, options with their values)`, in any order; after -- all is no option."""
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
