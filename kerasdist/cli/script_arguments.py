"""The arguments of `kerasdist run`: options, a script, and the script's own arguments."""

from __future__ import annotations

import dataclasses
import itertools
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasdist.cli.options import OUTPUT_OPTIONS, RUN_OPTIONS
from kerasdist.cli.parser import Option, Options, parse
from kerasdist.errors import KerasdistError, closest
from kerasdist.runs.catalog import is_run

_PROG = "kerasdist run [options] SCRIPT.py [its own arguments]"
_DESCRIPTION = (
    "Runs a Keras script as `python SCRIPT.py` would. Its model.fit, evaluate and predict use "
    "kerasdist. Options stand before the script: what follows it belongs to the script."
)
_OF_FIT = (
    "devices",
    "deterministic",
    "shards",
    "precision",
    "clip_norm",
    "ema",
    "save_every",
    "keep",
    "on_nan",
    "allow_nan",
    "sync_batch_norm",
    "jit",
    "memory_growth",
    "memory_limit",
)
SCRIPT_OPTIONS: Options = {
    **{name: RUN_OPTIONS[name] for name in _OF_FIT},
    "run_dir": Option(
        str | None,
        None,
        "folder for the script's fits; after a kill, the same command continues from there",
    ),
    "seed": dataclasses.replace(
        RUN_OPTIONS["seed"],
        kind=int | None,
        default=None,
        meaning="seed Python, NumPy and Keras before the script starts",
    ),
}
_OUTPUT: Options = {name: OUTPUT_OPTIONS[name] for name in ("verbose", "debug")}


@dataclass(frozen=True)
class ScriptArguments:
    """A script, its own arguments, and the options of `kerasdist run`."""

    script: Path
    arguments: tuple[str, ...]
    options: dict[str, Any]


def parse_run(argv: list[str]) -> ScriptArguments:
    """`kerasdist run [options] SCRIPT.py [its own arguments]`."""
    own, rest = _split(argv)
    values = parse({"run": SCRIPT_OPTIONS, "output": _OUTPUT}, own, _PROG, _DESCRIPTION)
    if not rest:
        raise KerasdistError(
            f"The script is missing. Expected `{_PROG}`. Name a Python file, for example "
            "`kerasdist run --devices 2 train.py`."
        )
    script = Path(rest[0]).expanduser()
    _check(script)
    return ScriptArguments(script, tuple(rest[1:]), {**values["run"], **values["output"]})


def _split(argv: list[str]) -> tuple[list[str], list[str]]:
    """The options of `run`, and the script with its arguments."""
    options = {**SCRIPT_OPTIONS, **_OUTPUT}
    with_value = {f"--{k.replace('_', '-')}" for k, v in options.items() if v.kind is not bool}
    numbers = iter(range(len(argv)))
    for i in numbers:
        if argv[i] == "--":
            return argv[:i], argv[i + 1 :]
        if not argv[i].startswith("-"):
            return argv[:i], argv[i:]
        if argv[i].replace("_", "-") in with_value:
            next(numbers, None)
    return argv, []


def _check(script: Path) -> None:
    """Refuses what Python cannot run."""
    if script.is_dir():
        raise KerasdistError(_of_folder(script))
    if not script.is_file():
        near = closest(script.name, [path.name for path in script.parent.glob("*.py")])
        raise KerasdistError(
            f"The file {str(script)!r} does not exist. Expected a Python script.{near} Check the "
            "name; options stand before it."
        )
    if script.suffix == ".ipynb":
        raise KerasdistError(
            f"{str(script)!r} is a notebook. Expected a Python script. In the notebook, call "
            "`kerasdist.enable(...)`, or convert it: `jupyter nbconvert --to script`."
        )
    if script.suffix not in ("", ".py", ".pyw"):
        raise KerasdistError(
            f"{str(script)!r} is not a Python file. Expected a script such as train.py. Name one."
        )


def _of_folder(folder: Path) -> str:
    """`run` is easily taken for a command on runs or recipes."""
    text = f"{str(folder)!r} is a folder. Expected a Python script such as train.py."
    if is_run(folder) or any(is_run(path) for path in folder.glob("fit-*")):
        return f"{text} `kerasdist runs {folder}` lists the runs in it."
    if (folder / "config.py").is_file():
        return f"{text} `kerasdist fit {folder}` trains a recipe."
    return f"{text} `kerasdist fit {folder}` trains a recipe, `kerasdist runs {folder}` lists runs."


def misplaced(given: ScriptArguments) -> str | None:
    """A note on an option of `run` that stands after a script that does not know it; or None."""
    try:
        text = given.script.read_text(errors="replace")
    except OSError:
        return None
    for word, following in itertools.pairwise([*given.arguments, ""]):
        name = word.partition("=")[0].removeprefix("--").replace("-", "_")
        if not word.startswith("--") or name not in SCRIPT_OPTIONS:
            continue
        if re.search(rf"""["'-]{name.replace("_", "[-_]")}["']""", text):
            continue  # Such as `add_argument("--devices")`.
        has_value = SCRIPT_OPTIONS[name].kind is not bool and "=" not in word
        shown = f"{word} {following}" if has_value and following[:1] not in ("", "-") else word
        return (
            f"{shown} is an argument of {given.script.name}; options of kerasdist come before the "
            "script"
        )
    return None
