"""Creates a new recipe from a template. Does not import TensorFlow."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from pathlib import Path
from typing import Any

from kerasdist.errors import KerasdistError, closest
from kerasdist.recipes.places import Place, templates
from kerasdist.recipes.recipe import FROM_DATA, config_class, load_from, settings_of

README = """\
# {name}

    kerasdist fit {folder}                      # with examples that data.py makes
    kerasdist fit {folder} --data-dir FOLDER    # with your data: one folder per class
    kerasdist fit {folder} --help               # all settings
    python -m pytest {folder}

- `config.py`: the settings. Each of them is an option of `kerasdist fit`. `learn` finds those that
  come from the data.
- `data.py`: how files are read and changed. Delete the code that makes examples when you have
  your own data.
- `model.py`: the network.
- `callbacks.py`, if you add it: `build_callbacks(config)` returns a list of Keras callbacks.
"""


def create(folder: Path, template: str, data: Path | None = None) -> list[Path]:
    """Writes a new recipe into a new folder, and returns its files.

    Args:
        folder: The new folder.
        template: The template.
        data: What the recipe trains on, unless `--data-dir` says otherwise. Then this path, and
            the settings that `learn` chooses, are the defaults of the new recipe's settings.
    """
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
    if data is not None:
        contents["config.py"] = _with_defaults(contents["config.py"], known[template], data)
    contents["README.md"] = README.format(name=folder.name, folder=folder)
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_text(content)
    return [folder / name for name in contents]


def _with_defaults(config: str, template: Path, data: Path) -> str:
    """The text of a config.py with defaults for the data at a path, in the place of None."""
    place = Place(template, data.name, {"data_dir": os.path.abspath(data)})
    found = settings_of(load_from(place).config)
    fields = dataclasses.fields(config_class(template))
    for name in ["data_dir", *(f.name for f in fields if f.metadata.get(FROM_DATA))]:
        if found[name] is not None:
            start = re.search(rf"\n    {name}: [^=]*= field\(\s*default=(?=None\b)", config)
            if start is not None:
                rest = config[start.end() :].removeprefix("None")
                config = f"{config[: start.end()]}{_as_code(found[name])}{rest}"
    return config


def _as_code(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
