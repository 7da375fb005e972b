"""`kerasdist new`: writes a recipe to start from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerasdist.cli.options import parse_options
from kerasdist.cli.parser import Option
from kerasdist.errors import KerasdistError
from kerasdist.recipes import places, scaffold
from kerasdist.recipes.own_data.kinds import described, look

# Any text, because templates are folders: `scaffold` checks the name.
OPTIONS = {
    "template": Option(
        str | None,
        None,
        f"template to start from: {', '.join(places.templates())}",
        hint="(default: image)",
    ),
    "data_dir": Option(
        str | None,
        None,
        "your data: the recipe is the one that `kerasdist fit` uses for it",
        aliases=("--from",),
    ),
    "target": Option(str | None, None, "with --from and a table: the column to predict"),
    "header": Option(
        bool | None,
        None,
        "with --from and a CSV file: its first line has the names of the columns; --no-header: "
        "there is no such line",
        without_value="true",
    ),
    "skip_bad": Option(
        bool, False, "with --from: leave out files or lines that cannot be used, also later"
    ),
}
# Settings of the recipe that decide how the data is read, if they are given.
_OF_DATA = ("target", "header", "skip_bad")
_PROG = "kerasdist new NAME"


def new(argv: list[str]) -> int:
    """`kerasdist new NAME [options]`."""
    if not argv or argv[0].startswith("-"):
        parse_options(OPTIONS, argv, _PROG)  # Prints the help, or refuses a wrong option.
        raise KerasdistError(
            "The name is missing. Expected `kerasdist new NAME`. Name the folder of the new "
            "recipe, for example flowers."
        )
    folder = Path(argv[0]).expanduser()
    parsed = parse_options(OPTIONS, argv[1:], _PROG)
    data = parsed["data_dir"]
    given = {name: parsed[name] for name in _OF_DATA if parsed[name] != OPTIONS[name].default}
    if data is None:
        _refuse_without_data(given)
        files = scaffold.create(folder, parsed["template"] or "image")
    else:
        template = _template_for(data, parsed["template"])
        files = scaffold.create(folder, template, Path(data), given)
    if not parsed["quiet"]:
        print(*(str(path) for path in files), f"next: kerasdist fit {folder}", sep="\n")
    return 0


def _refuse_without_data(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        flag = name.replace("_", "-")
        shown = {True: f"--{flag}", False: f"--no-{flag}"}.get(value, f"--{flag} {value}")
        raise KerasdistError(
            f"Received `{shown}` without `--from`. Expected your data, because this says how to "
            "read it. Add for example `--from table.csv`."
        )


def _template_for(data: str, template: str | None) -> str:
    """The template for data at a path. Refuses another one."""
    path = Path(data).expanduser()
    if not path.exists():
        raise KerasdistError(
            f"Received `--from {data}`, which does not exist. Expected a folder with one folder of "
            f"{described()} per class. Check the name."
        )
    found = look(path).recipe
    if template not in (None, found):
        raise KerasdistError(
            f"Received `--template {template}` with `--from {data}`, which is for the template "
            f"{found}. Expected one of both. Leave out `--template`."
        )
    return found
