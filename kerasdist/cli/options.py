"""Command-line options, made for a recipe or for a bare model and provider, without TensorFlow."""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kerasdist.cli.parser import Option, Options, parse
from kerasdist.errors import KerasdistError, closest
from kerasdist.recipes import recipe as recipes
from kerasdist.recipes.class_file import REQUIRED, ClassFile

# What resolve_names of kerasdist.devices reads; whether such a device exists, TensorFlow must say.
_DEVICE = r"/?(device:)?(cpu|gpu)"
_ITEM = rf"(\d+|{_DEVICE}:\d+)"
_DEVICES = re.compile(rf"auto|[1-9]\d*|{_DEVICE}(:\d+)?|{_ITEM}(\s*,\s*{_ITEM})+", re.I)
_COUNTS = re.compile(r"[1-9]\d*(\s*,\s*[1-9]\d*)*")


def _guess_device(text: str) -> str:
    """The same with the nearest kind of device: cpu:2 for cpy:2."""
    numbered = [
        f"{kind}{number}" for kind in ("cpu", "gpu") for number in re.findall(r":\d+", text)
    ]
    return closest(text.lower(), ["auto", "cpu", "gpu", *numbered])


def count_option(default: int | None, meaning: str, example: str = "10") -> Option:
    return Option(
        int if default is not None else int | None,
        default,
        meaning,
        expected="a whole number of at least 1",
        example=example,
        valid=lambda value: value >= 1,
    )


RUN_OPTIONS: Options = {
    "devices": Option(
        str,
        "auto",
        "auto (every GPU, else the CPU), a number of devices, the indices 0,2, a name such as "
        "GPU:0, or cpu:4 for four logical CPUs",
        expected="auto, a number, indices such as 0,2, a name such as GPU:0, cpu or cpu:4",
        example="2",
        valid=lambda value: _DEVICES.fullmatch(value.strip()) is not None,
        guess=lambda text: _guess_device(text),
    ),
    "batch_size": count_option(None, "examples of one step, over all devices", "128"),
    "epochs": count_option(1, "passes over the training data"),
    "steps": count_option(None, "steps to train instead of epochs", "1000"),
    "shards": count_option(
        None, "equal parts of a batch: a multiple of the devices, and more save memory"
    ),
    "deterministic": Option(bool, False, "the same bits on any number of devices"),
    "jit": Option(Literal["on", "off"], "off", "on compiles forward pass and gradient with XLA"),
    "precision": Option(
        Literal[
            "mixed_bfloat16", "mixed_float16", "float32", "float64", "bfloat16", "float16", None
        ],
        None,
        "mixed_bfloat16, mixed_float16 or another Keras dtype policy",
    ),
    "clip_norm": Option(
        float | None,
        None,
        "largest global norm of the gradients",
        expected="a number above 0",
        example="1.0",
        valid=lambda value: value > 0,
    ),
    "ema": Option(
        float | None,
        None,
        "decay of an average of the weights, for evaluation",
        expected="a decay between 0 and 1",
        example="0.999",
        valid=lambda value: 0 < value < 1,
    ),
    "seed": Option(
        int,
        0,
        "seed of initial weights, order, dropout and augmentation",
        expected="a whole number from 0 on",
        example="1",
        valid=lambda value: 0 <= value < 2**63,
    ),
    "run_dir": Option(
        str | None,
        None,
        "folder of the run, continued if it is there",
        hint="(default: the newest unfinished runs/NAME/NNNN of this command, or a new one)",
    ),
    "resume": Option(bool, True, "continue a run that is there; --no-resume starts a new one"),
    "init_from": Option(str | None, None, "weights to start from: a run, a .keras or .h5 file"),
    "save_every": Option(
        str,
        "1000",
        "between two checkpoints: steps (500), seconds (30s) or epoch",
        expected="a number of steps, seconds like 30s, or epoch",
        example="30s",
        valid=lambda value: re.fullmatch(r"[1-9]\d*|\d+(\.\d+)?s|epoch", value) is not None,
    ),
    "keep": Option(
        int,
        2,
        "checkpoints that are kept",
        expected="a whole number of at least 2",
        example="2",
        valid=lambda value: value >= 2,
    ),
    "monitor": Option(str | None, None, "logged value that decides about best.keras"),
    "on_nan": Option(Literal["stop", "skip"], "stop", "what to do with a step that is not finite"),
    "allow_nan": Option(
        bool, False, "let NaN and infinity in the data through, for a model that masks them"
    ),
    "log_every": count_option(10, "steps between two log lines"),
    "summary_every": Option(
        int,
        100,
        "steps between two summaries for TensorBoard; 0 writes none",
        expected="a whole number from 0 on",
        example="100",
        valid=lambda value: value >= 0,
    ),
    "profile": Option(
        bool, False, "trace a few steps for TensorBoard, and say where the time of a step goes"
    ),
    "log_placement": Option(
        bool, False, "say which operations run on which device, and list them in placement.txt"
    ),
    "data_dir": Option(str | None, None, "folder with the data"),
    "source": Option(str, "auto", "where the data comes from: auto, files, tfds or synthetic"),
    "dry_run": Option(bool, False, "two steps and one evaluation of everything; nothing is kept"),
    "soft_placement": Option(bool, False, "take the nearest device where one does not exist"),
    "memory_growth": Option(bool, False, "take a GPU's memory only as it is needed"),
    "memory_limit": Option(
        str | None, None, "the most memory taken on each GPU: a size (4GB) or a fraction (0.4)"
    ),
}
OUTPUT_OPTIONS: Options = {
    "json": Option(bool, False, "print one JSON object a line"),
    "quiet": Option(bool, False, "print nothing but warnings and errors"),
    "verbose": Option(bool, False, "show TensorFlow's own messages", aliases=("-v",)),
    "debug": Option(bool, False, "show the traceback of an error"),
}
_VERIFY_ONLY: Options = {
    "counts": Option(
        str,
        "1,2,4",
        "numbers of devices to compare",
        expected="numbers of devices with commas between",
        example="1,2,4",
        valid=lambda value: _COUNTS.fullmatch(value.strip()) is not None,
    ),
    "steps": count_option(5, "steps to train on each"),
}
# What a comparison on several numbers of devices decides itself.
_RUN_FOLDER = ("run_dir", "resume", "init_from", "save_every", "keep", "monitor", "on_nan")
PLACEMENT = ("devices", "soft_placement", "memory_growth", "memory_limit")
_NOT_VERIFY = (
    "devices",
    "epochs",
    *_RUN_FOLDER,
    "log_every",
    "summary_every",
    "profile",
    "log_placement",
    "dry_run",
    *PLACEMENT[1:],
)
VERIFY_OPTIONS: Options = {
    **_VERIFY_ONLY,
    **{k: v for k, v in RUN_OPTIONS.items() if k not in (*_NOT_VERIFY, *_VERIFY_ONLY)},
}
_BENCH_ONLY: Options = {
    "counts": dataclasses.replace(
        _VERIFY_ONLY["counts"], default="1,2", meaning="numbers of devices"
    ),
    "against": Option(
        Literal["keras", None], None, "also Keras's own fit, on the same model and data"
    ),
    "rounds": count_option(5, "measurements of each, which take turns"),
    "seconds": Option(
        float,
        3.0,
        "about how long a round takes",
        expected="a number above 0",
        example="3",
        valid=lambda value: value > 0,
    ),
    "output": Option(str | None, None, "folder for bench.json and bench.svg", hint="(bench/NAME)"),
}
BENCH_OPTIONS: Options = {
    **_BENCH_ONLY,
    **{k: v for k, v in RUN_OPTIONS.items() if k not in (*_NOT_VERIFY, "ema")},
}
# Only recipes have these settings; without one nothing reads them.
_RECIPE_ONLY = ("data_dir", "source")
# A run is begun anew from its config.json: not in the same folder, and not for two steps only.
_NOT_REPEATED = ("run_dir", "resume", "dry_run", "profile", "log_placement")


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


def parse_fit(
    argv: list[str], prog: str = "kerasdist fit", options: Options = RUN_OPTIONS
) -> FitOptions:
    """Parses the arguments of `fit`, or of a command like it with other run options."""
    if argv and argv[0] in ("-h", "--help") and not _is_given(argv, "--model"):
        parse({"run": options, "output": OUTPUT_OPTIONS}, ["--help"], f"{prog} RECIPE", _overview())
    if argv and argv[0].startswith("-"):
        if _is_given(argv, "--model") or _is_given(argv, "--data"):
            return _parse_bare(argv, prog, options)
        raise KerasdistError(
            f"Received {argv[0]!r} where the recipe belongs. Expected `{prog} RECIPE [options]`, "
            "or `--model FILE.py:Class --data FILE.py:Class`. Name the recipe first: a folder, or "
            f"one that comes with the package ({', '.join(recipes.bundled())})."
        )
    if not argv:
        raise KerasdistError(
            f"Received no recipe. Expected `{prog} RECIPE [options]`, or `--model FILE.py:Class "
            "--data FILE.py:Class`. Name a recipe: a folder, or one that comes with the package "
            f"({', '.join(recipes.bundled())})."
        )
    recipe, rest = argv[0], argv[1:]
    saved = recipes.saved_config(recipe) or {}
    repeated = {k: v for k, v in saved.get("options", {}).items() if k not in _NOT_REPEATED}
    options = {
        k: dataclasses.replace(v, default=repeated.get(k, v.default)) for k, v in options.items()
    }
    if "model" in saved:
        return _parse_bare(rest, f"{prog} {recipe}", options, saved)
    path, groups = recipe_groups(recipe, rest, prog, options)
    values = parse(groups, rest, f"{prog} {recipe}", recipes.summary(path))
    # The recipe's own checks come before TensorFlow is imported, too.
    recipes.load_recipe(path, **values[path.name])
    shared = {k: v for k, v in values[path.name].items() if k in RUN_OPTIONS}
    return FitOptions(recipe, {**values["run"], **shared, **values["output"]}, values[path.name])


def recipe_groups(
    recipe: str, rest: list[str], prog: str, options: Options
) -> tuple[Path, dict[str, Options]]:
    """The folder of a recipe, and its own options besides those of the command."""
    path, settings = recipes.find(recipe)
    chosen = _value_given(rest, "--preset")
    if chosen is not None and chosen != settings.get("preset", chosen):
        raise KerasdistError(
            f"Received `--preset {chosen}` for a run with the preset {settings['preset']!r}, whose "
            "settings are all in its config.json. Expected the same preset. Name the recipe "
            f"instead: `{prog} {path.name} --preset {chosen}`."
        )
    given = {} if chosen is None else {"preset": chosen}
    own = _recipe_options(path, {**recipes.preset(path, {**settings, **given}), **settings})
    for name in {*own} & {*options}:
        if own[name].default is None:  # The command's own, where a recipe leaves it open.
            own[name] = dataclasses.replace(own[name], default=options[name].default)
    options = {k: v for k, v in options.items() if k not in own and k not in _RECIPE_ONLY}
    return path, {path.name: own, "run": options, "output": OUTPUT_OPTIONS}


def _is_given(argv: list[str], name: str) -> bool:
    return any(a == name or a.startswith(f"{name}=") for a in argv)


def _value_given(argv: list[str], name: str) -> str | None:
    """The value of `name VALUE` or `name=VALUE`, before the options are known."""
    for i, argument in enumerate(argv):
        if argument == name:
            return argv[i + 1] if i + 1 < len(argv) else None
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
    return None


def _overview() -> str:
    lines = [
        "RECIPE is one of",
        "  a folder with config.py, data.py and model.py",
        "  the config.json of a run, or its folder: the same again",
        "  a recipe that comes with the package:",
        *(f"    {name}: {recipes.summary(path)}" for name, path in recipes.bundled().items()),
        "  nothing, but --model FILE.py:Class --data FILE.py:Class",
        "",
        "A recipe's own settings are options too: RECIPE --help lists them.",
    ]
    return "\n".join(lines)


def _recipe_options(path: Path, saved: Mapping[str, Any]) -> dict[str, Option]:
    """The settings of a recipe as options; one that is a run option too has that one's checks."""
    kind = recipes.config_class(path)
    hints = typing.get_type_hints(kind)
    options = {}
    for field in dataclasses.fields(kind):
        default = recipes.default_of(field)
        if field.name in saved:
            default = recipes.like_default(saved[field.name], default)
        template = RUN_OPTIONS.get(field.name, Option(str, None, ""))
        options[field.name] = dataclasses.replace(
            template,
            kind=hints[field.name],
            default=REQUIRED if default is dataclasses.MISSING else default,
            meaning=field.metadata.get("help", template.meaning),
        )
    return options


def _parse_bare(
    argv: list[str], prog: str, options: Options, saved: Mapping[str, Any] | None = None
) -> FitOptions:
    """`--model FILE.py:Class --data FILE.py:Class`, or the config.json of a run of them."""
    texts: dict[str, str] = {}
    rest: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name in ("--model", "--data"):
            texts[name] = value if equals else next(arguments, "")
        else:
            rest.append(argument)
    if saved is not None:
        texts = {"--model": saved["model"], "--data": saved["data"], **texts}
    for option, other, what in (
        ("--data", "--model", "a provider with `batch_size` and `get_batch_data()`"),
        ("--model", "--data", "a `kerasdist.Model` with `defaults()`"),
    ):
        if option not in texts:
            raise KerasdistError(
                f"Received `{other} {texts[other]}` without `{option}`. Expected both. Add "
                f"`{option} FILE.py:Class`, {what}."
            )
    model = ClassFile.parse(texts["--model"], "--model")
    data = ClassFile.parse(texts["--data"], "--data")
    model_options = _class_options(model, (saved or {}).get("model_arguments", {}))
    data_options = _class_options(data, (saved or {}).get("data_arguments", {}))
    options = {k: v for k, v in options.items() if k not in _RECIPE_ONLY}
    own_batch_size = data_options.pop("batch_size", None)
    if own_batch_size is not None:
        # The provider's, under the name that it has for recipes.
        options["batch_size"] = dataclasses.replace(
            options["batch_size"], default=own_batch_size.default
        )
    groups = {
        "run": options,
        "model": model_options,
        "data": data_options,
        "output": OUTPUT_OPTIONS,
    }
    prog = prog if saved is not None else f"{prog} --model FILE.py:Class --data FILE.py:Class"
    values = parse(groups, rest, prog, "", prefixed=("model", "data"))
    run = {**values["run"], **values["output"]}
    data_arguments = values["data"]
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


def _class_options(source: ClassFile, saved: Mapping[str, Any]) -> dict[str, Option]:
    """The constructor's arguments as options."""
    options = {}
    for argument in source.arguments():
        default = argument.default
        if argument.name in saved:
            default = recipes.like_default(saved[argument.name], default)
        options[argument.name] = Option(argument.type, default, argument.help)
    return options


def parse_options(options: Options, argv: list[str], prog: str) -> dict[str, Any]:
    """Parses plain options for the smaller commands."""
    values = parse({"run": options, "output": OUTPUT_OPTIONS}, argv, prog, "")
    return {**values["run"], **values["output"]}
