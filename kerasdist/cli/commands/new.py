"""`kerasdist new`: writes a recipe to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kerasdist.cli.options import parse_options
from kerasdist.cli.parser import Option
from kerasdist.errors import KerasdistError
from kerasdist.recipes import scaffold

# A text, not one of the names: these are folders, and a wrong one gets a guess.
OPTIONS = {"template": Option(str, "image", "what to start from: image or audio")}


def parse(argv: list[str]) -> tuple[Path, dict[str, Any]]:
    """`kerasdist new NAME [options]`."""
    if not argv or argv[0].startswith("-"):
        parse_options(OPTIONS, argv, "kerasdist new NAME")  # Help, or what is wrong with an option.
        raise KerasdistError(
            "Received no name. Expected `kerasdist new NAME`. Name the folder of the new recipe, "
            "for example flowers."
        )
    return Path(argv[0]).expanduser(), parse_options(OPTIONS, argv[1:], "kerasdist new NAME")


def new(argv: list[str]) -> int:
    """`kerasdist new`."""
    folder, parsed = parse(argv)
    files = scaffold.create(folder, parsed["template"])
    if not parsed["quiet"]:
        print(*(str(path) for path in files), f"next: kerasdist fit {folder}", sep="\n")
    return 0
