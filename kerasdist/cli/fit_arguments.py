"""Parses the arguments of `fit`, `verify` and `bench`, without TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from kerasdist.cli.checks import shards
from kerasdist.cli.options import BENCH_OPTIONS, OUTPUT_OPTIONS, RUN_OPTIONS, VERIFY_OPTIONS
from kerasdist.cli.parser import Options, parse
from kerasdist.cli.settings import ONLY_RECIPES, class_options, of_other_data, recipe_groups
from kerasdist.errors import KerasdistError
from kerasdist.recipes import data_folder, places
from kerasdist.recipes import recipe as recipes
from kerasdist.recipes.class_file import ClassFile
from kerasdist.recipes.own_data.kinds import described

# When a run's config.json is trained again, these options do not come from it.
_NOT_REPEATED = ("run_dir", "resume", "dry_run", "profile", "log_placement")
_CLASSES = "--model FILE.py:Class --data FILE.py:Class"


@dataclass(frozen=True)
class FitOptions:
    """The parsed arguments of `kerasdist fit`.

    Attributes:
        recipe: The recipe as it was named; None with a model and a data class.
        run: Values of the command's own options.
        settings: The recipe's settings.
        model: The model class, without a recipe.
        model_arguments: What its constructor gets.
        data: The data class, without a recipe.
        data_arguments: What its constructor gets.
    """

    recipe: str | None
    run: dict[str, Any]
    settings: dict[str, Any]
    model: ClassFile | None = None
    model_arguments: dict[str, Any] = dataclasses.field(default_factory=dict)
    data: ClassFile | None = None
    data_arguments: dict[str, Any] = dataclasses.field(default_factory=dict)


def parse_verify(argv: list[str]) -> tuple[FitOptions]:
    """`kerasdist verify RECIPE [options]`."""
    options = parse_fit(argv, "kerasdist verify", VERIFY_OPTIONS)
    shards.check_counts(options.run, shares_shards=True)
    return (options,)


def parse_bench(argv: list[str]) -> tuple[FitOptions, list[str]]:
    """`kerasdist bench RECIPE [options]`, and the arguments as they were, for other processes."""
    options = parse_fit(argv, "kerasdist bench", BENCH_OPTIONS)
    shards.check_counts(options.run, shares_shards=False)
    return options, argv


def parse_fit(
    argv: list[str],
    prog: str = "kerasdist fit",
    options: Options = RUN_OPTIONS,
    *,
    learns_again: bool = True,
) -> FitOptions:
    """Parses the arguments of `fit`, or of a command like it with other options.

    Without `learns_again`, nothing is learnt from the data of a run.
    """
    has_classes = _is_given(argv, "--model") or _is_given(argv, "--data")
    if argv and argv[0] in ("-h", "--help") and not _is_given(argv, "--model"):
        parse({"run": options, "output": OUTPUT_OPTIONS}, ["--help"], f"{prog} RECIPE", _overview())
    if argv and argv[0].startswith("-") and has_classes:
        return _parse_classes(argv, prog, options, {})
    if not argv or argv[0].startswith("-"):
        before = f" before {argv[0]!r}" if argv else ""
        raise KerasdistError(
            f"The recipe is missing{before}. Expected `{prog} RECIPE [options]`, or `{prog} "
            f"{_CLASSES}`. Name a recipe first: a folder, or one that comes with kerasdist "
            f"({', '.join(places.bundled())})."
        )
    recipe, rest = argv[0], argv[1:]
    saved = places.saved_config(recipe) or {}
    repeated = {k: v for k, v in saved.get("options", {}).items() if k not in _NOT_REPEATED}
    options = {
        k: dataclasses.replace(v, default=repeated.get(k, v.default)) for k, v in options.items()
    }
    if "model" in saved:
        return _parse_classes(rest, f"{prog} {recipe}", options, saved)
    place, groups = recipe_groups(recipe, rest, prog, options)
    values = parse(
        groups,
        rest,
        f"{prog} {recipe}",
        recipes.summary(place.path),
        elsewhere=partial(of_other_data, place, recipe),
    )
    # Runs the recipe's own checks and looks at its data, before TensorFlow is imported.
    loaded = recipes.load_from(place, values[place.path.name], learns_again=learns_again)
    settings = recipes.settings_of(loaded.config)
    shared = {k: v for k, v in settings.items() if k in RUN_OPTIONS}
    run = {**values["run"], **shared, **values["output"]}
    shards.check_shards(run)
    data_folder.check(loaded)
    return FitOptions(recipe, run, settings)


def _is_given(argv: list[str], name: str) -> bool:
    return any(a == name or a.startswith(f"{name}=") for a in argv)


def _overview() -> str:
    lines = [
        "RECIPE is one of:",
        "  a folder with config.py, data.py and model.py",
        "  a run's folder or its config.json: trains the same again",
        f"  a folder with one folder of {described()} per class (docs/your-own-data.md)",
        "  a table: a .csv, .tsv or .parquet file (docs/your-own-tables.md)",
        "  a recipe that comes with kerasdist:",
        *(f"    {name}: {recipes.summary(path)}" for name, path in places.bundled().items()),
        f"  nothing, with {_CLASSES}",
        "",
        "The settings of a recipe are options too. RECIPE --help lists them.",
    ]
    return "\n".join(lines)


def _parse_classes(
    argv: list[str], prog: str, options: Options, saved: Mapping[str, Any]
) -> FitOptions:
    """Parses `--model FILE.py:Class --data FILE.py:Class`.

    Args:
        argv: The arguments.
        prog: The command, for help and errors.
        options: The command's options.
        saved: The config.json of a run of two classes that is trained again, or nothing.
    """
    texts, rest = _class_files(argv, saved)
    model = ClassFile.parse(texts["--model"], "--model")
    data = ClassFile.parse(texts["--data"], "--data")
    model_options = class_options(model, saved.get("model_arguments", {}))
    data_options = class_options(data, saved.get("data_arguments", {}))
    run_options = {k: v for k, v in options.items() if k not in ONLY_RECIPES}
    own_batch_size = data_options.pop("batch_size", None)
    if own_batch_size is not None:
        # `--batch-size` as with recipes, instead of `--data.batch-size`.
        run_options["batch_size"] = dataclasses.replace(
            run_options["batch_size"], default=own_batch_size.default
        )
    groups = {
        "run": run_options,
        "model": model_options,
        "data": data_options,
        "output": OUTPUT_OPTIONS,
    }
    prog = prog if saved else f"{prog} {_CLASSES}"
    values = parse(groups, rest, prog, "", prefixed=("model", "data"))
    run = {**values["run"], **values["output"]}
    data_arguments = values["data"]
    shards.check_shards(run)
    if own_batch_size is not None:
        data_arguments = {**data_arguments, "batch_size": run["batch_size"]}
        run["batch_size"] = None
    return FitOptions(
        None,
        run,
        {},
        model=model,
        model_arguments=values["model"],
        data=data,
        data_arguments=data_arguments,
    )


def _class_files(argv: list[str], saved: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """`({"--model": ..., "--data": ...}, the other arguments)`."""
    texts = {f"--{name}": saved[name] for name in ("model", "data") if name in saved}
    rest: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name in ("--model", "--data"):
            texts[name] = value if equals else next(arguments, "")
        else:
            rest.append(argument)
    for option, other, what in (
        ("--data", "--model", "a provider with `batch_size` and `get_batch_data()`"),
        ("--model", "--data", "a `kerasdist.Model` with `defaults()`"),
    ):
        if option not in texts:
            raise KerasdistError(
                f"Received `{other} {texts[other]}` without `{option}`. Both are needed. Add "
                f"`{option} FILE.py:Class`, {what}."
            )
    return texts, rest
