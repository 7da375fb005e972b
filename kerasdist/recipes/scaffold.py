"""Creates a new recipe from a template. Does not import TensorFlow."""

from __future__ import annotations

import re
from pathlib import Path

from kerasdist.errors import KerasdistError, closest
from kerasdist.recipes.places import templates

README = """\
# {name}

    kerasdist fit {folder}                      # with examples that data.py makes
    kerasdist fit {folder} --data-dir FOLDER    # with your data: one folder per class
    kerasdist fit {folder} --help               # all settings
    python -m pytest {folder}

- `data.py`: your classes (`CLASS_NAMES`) and how their files are read. Delete the code that makes
  examples when you have your own data.
- `model.py`: the network. `features` and `targets` name the fields of the data that it reads.
- `callbacks.py`, if you add it: `build_callbacks(config)` returns a list of Keras callbacks.
- `config.py`: the settings. Each of them is an option of `kerasdist fit`.
"""


def create(folder: Path, template: str) -> list[Path]:
    """Writes a new recipe into a new folder, and returns its files."""
    known = templates()
    if template not in known:
        raise KerasdistError(
            f"Received `--template {template}`. Expected one of {', '.join(known)}."
            f"{closest(template, known)} Correct the name."
        )
    if not re.fullmatch(r"[A-Za-z_]\w*", folder.name):
        raise KerasdistError(
            f"Received the name {folder.name!r}. Expected letters, digits and underscores, with a "
            "letter first. Choose another name, for example flowers."
        )
    if folder.exists():
        raise KerasdistError(
            f"The folder {str(folder)!r} already exists. Expected a new name, because nothing is "
            "overwritten. Choose another name, or remove the folder."
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
