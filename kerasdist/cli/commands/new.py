"""`kerasdist new`: writes a recipe to start from."""

from __future__ import annotations

from pathlib import Path

from kerasdist.cli.options import parse_options
from kerasdist.cli.parser import Option
from kerasdist.errors import KerasdistError
from kerasdist.recipes import scaffold

# Any text, because templates are folders: `scaffold` checks the name.
OPTIONS = {"template": Option(str, "image", "template to start from: image or audio")}
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
    files = scaffold.create(folder, parsed["template"])
    if not parsed["quiet"]:
        print(*(str(path) for path in files), f"next: kerasdist fit {folder}", sep="\n")
    return 0
