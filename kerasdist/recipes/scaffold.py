"""A new recipe, copied from a template. Imports no TensorFlow."""

from __future__ import annotations

import re
from pathlib import Path

from kerasdist.errors import KerasdistError, closest
from kerasdist.recipes.recipe import bundled

README = """\
# {name}

    kerasdist fit {folder}                      # on examples that data.py makes
    kerasdist fit {folder} --data-dir FOLDER    # on yours: a folder for each class
    kerasdist fit {folder} --help               # every setting and its meaning
    python -m pytest {folder}

- `data.py`: your classes (`CLASS_NAMES`) and how their files are read. Delete what makes examples.
- `model.py`: the network; `features` and `targets` name the fields of the data that it reads.
- `config.py`: every setting; each is an option of `kerasdist fit`.
"""


def templates() -> dict[str, Path]:
    """The folders of the templates, by name."""
    return bundled("templates", "templates")


def create(folder: Path, template: str) -> list[Path]:
    """Writes a new recipe into a folder that is not there yet, and returns its files."""
    known = templates()
    if template not in known:
        raise KerasdistError(
            f"Received `--template {template}`. Expected one of {', '.join(known)}."
            f"{closest(template, known)} Correct it."
        )
    if not re.fullmatch(r"[A-Za-z_]\w*", folder.name):
        raise KerasdistError(
            f"Received the name {folder.name!r}. Expected letters, digits and underscores, with a "
            "letter first. Choose another, for example flowers."
        )
    if folder.exists():
        raise KerasdistError(
            f"Received the folder {str(folder)!r}, which exists. Expected a new name: nothing is "
            "overwritten. Choose another, or remove it."
        )
    contents = {
        path.name: path.read_text().replace(
            f'register_keras_serializable("{template}")',
            f'register_keras_serializable("{folder.name}")',
        )
        for path in sorted(known[template].glob("*.py"))
    }
    contents["README.md"] = README.format(name=folder.name, folder=folder)
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_text(content)
    return [folder / name for name in contents]
