"""Command-line options as dataclasses, made for a recipe or for a bare model and provider."""

from __future__ import annotations

import dataclasses
import typing
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import tyro

from kerasdist import recipes
from kerasdist.errors import KerasdistError
from kerasdist.signatures import REQUIRED, ClassFile


def _option(kind: Any, default: Any, meaning: str, **extra: Any) -> tuple[Any, Any]:
    return Annotated[kind, tyro.conf.arg(help=meaning, **extra)], default


# Every run option with its type, default and meaning.
RUN_OPTIONS: dict[str, tuple[Any, Any]] = {
    "devices": _option(str, "auto", 'auto, a number, "0,2", GPU:0, cpu or cpu:4'),
    "batch_size": _option(int | None, None, "examples of one step, over all devices"),
    "epochs": _option(int, 1, "passes over the training data"),
    "steps": _option(int | None, None, "steps to train instead of epochs"),
    "shards": _option(int | None, None, "equal parts of a batch, a multiple of the devices"),
    "deterministic": _option(bool, False, "the same bits on any number of devices"),
    "precision": _option(str | None, None, "mixed_bfloat16, mixed_float16, float32"),
    "clip_norm": _option(float | None, None, "largest global norm of the gradients"),
    "ema": _option(float | None, None, "decay of an average of the weights, for evaluation"),
    "seed": _option(int, 0, "seed of initial weights, order, dropout and augmentation"),
    "run_dir": _option(str | None, None, "folder of the run (default: runs/NAME/NNNN)"),
    "log_every": _option(int, 10, "steps between two log lines"),
    "data_dir": _option(str | None, None, "folder with the data"),
    "source": _option(str, "auto", "auto, files, tfds or synthetic"),
    "dry_run": _option(bool, False, "two steps and one evaluation; nothing is kept"),
    "soft_placement": _option(bool, False, "take the nearest device where one does not exist"),
}
OUTPUT_OPTIONS: dict[str, tuple[Any, Any]] = {
    "json": _option(bool, False, "one JSON object a line"),
    "quiet": _option(bool, False, "print nothing but errors"),
    "verbose": _option(bool, False, "show TensorFlow's own messages", aliases=["-v"]),
    "debug": _option(bool, False, "show the traceback of an error"),
}
VERIFY_OPTIONS: dict[str, tuple[Any, Any]] = {
    "counts": _option(str, "1,2,4", "numbers of devices to compare"),
    "steps": _option(int, 5, "steps to train on each"),
}
# Only recipes have these settings; without one nothing reads them.
RECIPE_ONLY = ("data_dir", "source")


@dataclass(frozen=True)
class FitOptions:
    """Parsed options of `kerasdist fit`: of the run, of the recipe, of model and data classes."""

    recipe: str | None
    run: dict[str, Any]
    settings: dict[str, Any]
    model: ClassFile | None = None
    model_arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    data: ClassFile | None = None
    data_arguments: dict[str, Any] = dataclasses.field(default_factory=dict)


def parse_fit(argv: list[str], prog: str = "kerasdist fit", **changes: Any) -> FitOptions:
    """Parses the arguments of `fit` (or of a command like it: `changes` adds options to it)."""
    if any(a == "--model" or a.startswith("--model=") for a in argv):
        return _parse_bare(argv, prog, changes)
    if not argv or argv[0] in ("-h", "--help"):
        _parse(_dataclass({**RUN_OPTIONS, **changes, **OUTPUT_OPTIONS}), ["--help"], f"{prog} RECIPE")
    if argv[0].startswith("-"):
        raise KerasdistError(
            f"Received {argv[0]!r} where the recipe belongs. Expected `{prog} RECIPE [options]`, or "
            "`--model FILE.py:Class --data FILE.py:Class`. Name the recipe first: "
            f"{', '.join(recipes.bundled())}."
        )
    recipe, rest = argv[0], argv[1:]
    path, saved = recipes.find(recipe)
    own = _recipe_options(path, saved)
    options = {k: v for k, v in RUN_OPTIONS.items() if k not in RECIPE_ONLY or k in own}
    options = {**options, **own, **changes, **OUTPUT_OPTIONS}
    values = vars(_parse(_dataclass(options), rest, f"{prog} {recipe}"))
    run = {k: values[k] for k in (*RUN_OPTIONS, *changes, *OUTPUT_OPTIONS) if k in values}
    return FitOptions(recipe, run, {k: values[k] for k in own})


def _recipe_options(path: Path, saved: Any) -> dict[str, tuple[Any, Any]]:
    kind = recipes.config_class(path)
    types = typing.get_type_hints(kind)
    options = {}
    for field in dataclasses.fields(kind):
        default = field.default
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        default = saved.get(field.name, default)
        options[field.name] = _option(types[field.name], default, field.metadata.get("help", ""))
    return options


def _parse_bare(argv: list[str], prog: str, changes: dict[str, Any]) -> FitOptions:
    texts: dict[str, str] = {}
    rest: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name in ("--model", "--data"):
            texts[name] = value if equals else next(arguments, "")
        else:
            rest.append(argument)
    if "--data" not in texts:
        raise KerasdistError(
            f"Received `--model {texts['--model']}` without `--data`. Expected both. Add `--data "
            "FILE.py:Class`, a provider with `batch_size` and `get_batch_data()`."
        )
    model = ClassFile.parse(texts["--model"], "--model")
    data = ClassFile.parse(texts["--data"], "--data")
    options = {k: v for k, v in RUN_OPTIONS.items() if k not in RECIPE_ONLY}
    options = {**options, **changes, **OUTPUT_OPTIONS}
    takes_batch_size = any(a.name == "batch_size" for a in data.arguments())
    nested = {
        "model": _class_options(model, ()),
        "data": _class_options(data, ("batch_size",)),
    }
    values = vars(_parse(_dataclass(options, nested), rest, f"{prog} --model … --data …"))
    data_arguments = vars(values["data"]) if "data" in values else {}
    if takes_batch_size:
        if values["batch_size"] is None:
            default = next(a.default for a in data.arguments() if a.name == "batch_size")
            if default is REQUIRED:
                raise KerasdistError(
                    f"Received no `--batch-size`, which `{data.name}` needs. Expected the number of "
                    "examples of one step over all devices. Add for example `--batch-size 32`."
                )
        else:
            data_arguments = {**data_arguments, "batch_size": values["batch_size"]}
    run = {k: values[k] for k in options}
    if takes_batch_size:
        run["batch_size"] = None  # It belongs to the provider.
    return FitOptions(
        None,
        run,
        {},
        model=model,
        model_arguments=vars(values["model"]) if "model" in values else {},
        data=data,
        data_arguments=data_arguments,
    )


def _class_options(source: ClassFile, without: tuple[str, ...]) -> dict[str, tuple[Any, Any]]:
    options = {}
    for argument in source.arguments():
        if argument.name in without:
            continue
        kind: Any = argument.type or str
        if argument.default is None:
            kind = kind | None
        elif argument.type is None and argument.default is not REQUIRED:
            kind = type(argument.default)
        options[argument.name] = _option(kind, argument.default, argument.help)
    return options


def _dataclass(
    options: dict[str, tuple[Any, Any]], nested: dict[str, dict] | None = None
) -> type:
    fields: list[Any] = [
        (name, kind) for name, (kind, default) in options.items() if default is REQUIRED
    ]
    for name, inner in (nested or {}).items():
        if inner:
            fields.append((name, _dataclass(inner)))
    fields += [
        (name, kind, dataclasses.field(default=default))
        for name, (kind, default) in options.items()
        if default is not REQUIRED
    ]
    return dataclasses.make_dataclass("Options", fields, frozen=True)


def _parse(kind: type, argv: list[str], prog: str) -> Any:
    return tyro.cli(kind, args=argv, prog=prog, description="")


def parse_options(options: dict[str, tuple[Any, Any]], argv: list[str], prog: str) -> dict[str, Any]:
    """Parses plain options for the smaller commands."""
    return vars(_parse(_dataclass({**options, **OUTPUT_OPTIONS}), argv, prog))


def parse_evaluate(argv: list[str]) -> tuple[str, dict[str, Any]]:
    """`kerasdist evaluate RUN [options]`."""
    own = {
        "devices": RUN_OPTIONS["devices"],
        "batch_size": RUN_OPTIONS["batch_size"],
        "split": _option(str, "validation", "train or validation"),
        "soft_placement": RUN_OPTIONS["soft_placement"],
    }
    if not argv or argv[0] in ("-h", "--help"):
        parse_options(own, ["--help"], "kerasdist evaluate RUN")
    if argv[0].startswith("-"):
        raise KerasdistError(
            f"Received {argv[0]!r} where the run belongs. Expected `kerasdist evaluate RUN "
            "[options]`. Name the run's folder first, for example runs/cifar10/0001."
        )
    return argv[0], parse_options(own, argv[1:], f"kerasdist evaluate {argv[0]}")
