"""Creates a new recipe from a template. Does not import TensorFlow."""

from __future__ import annotations

import dataclasses
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerasdist.errors import KerasdistError, closest
from kerasdist.recipes.places import Place, templates
from kerasdist.recipes.recipe import FROM_DATA, config_class, load_from, settings_of

README = """\
# {name}

    kerasdist fit {folder}                      # with {source}
    kerasdist fit {folder} --data-dir PATH      # with {other}
    kerasdist fit {folder} --help               # all settings
    pip install pytest && python -m pytest {folder}

- `config.py`: the settings. Each of them is an option of `kerasdist fit`. `learn` finds those that
  come from the data.
- `data.py`: how files are read and changed.{more}
- `model.py`: the network.
- `callbacks.py`, if you add it: `build_callbacks(config)` returns a list of Keras callbacks.
"""
# What follows if the recipe has no data of its own, by whether example.py makes the examples.
_EXAMPLES = {
    False: " Delete the code that makes examples when you have\n  your own data.",
    True: "\n- `example.py`: makes the examples, if there is no `--data-dir`.",
}

# pytest collects tests of two recipes at once if their files have two names.
_TEST = {"test_recipe.py": "test_{name}.py"}
# What a template reads, in words; of the others, files in folders.
_DATA = {"table": ".csv, .tsv or .parquet file"}


def create(
    folder: Path,
    template: str,
    data: Path | None = None,
    given: Mapping[str, Any] | None = None,
) -> list[Path]:
    """Writes a new recipe into a new folder, and returns its files.

    Args:
        folder: The new folder.
        template: The template.
        data: What the recipe trains on, unless `--data-dir` says otherwise. Then this path, and
            the settings that `learn` chooses, are the defaults of the new recipe's settings.
        given: Settings that decide how the data is read, such as the `target` of a table. They
            become defaults, too.
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
        _TEST.get(path.name, path.name).format(name=folder.name): path.read_text().replace(
            f'register_keras_serializable("{template}")',
            f'register_keras_serializable("{folder.name}")',
        )
        for path in sorted(known[template].glob("*.py"))
    }
    if data is not None:
        contents["config.py"] = _with_defaults(
            contents["config.py"], known[template], data, given or {}
        )
    contents["README.md"] = _readme(folder, template, data, "example.py" in contents)
    folder.mkdir(parents=True)
    for name, content in contents.items():
        (folder / name).write_text(content)
    return [folder / name for name in contents]


def _readme(folder: Path, template: str, data: Path | None, has_example: bool) -> str:
    form = _DATA.get(template, "folder with one folder per class")
    maker = "example.py" if has_example else "data.py"
    return README.format(
        name=folder.name,
        folder=folder,
        source=f"examples that {maker} makes" if data is None else os.path.abspath(data),
        other=f"your data: a {form}" if data is None else f"another {form}",
        more=_EXAMPLES[has_example] if data is None else "",
    )


def _with_defaults(config: str, template: Path, data: Path, given: Mapping[str, Any]) -> str:
    """The text of a config.py whose defaults are the given settings and those from the data."""
    place = Place(template, data.name, {"data_dir": os.path.abspath(data)})
    found = settings_of(load_from(place, given).config)
    fields = dataclasses.fields(config_class(template))
    chosen = [field.name for field in fields if field.metadata.get(FROM_DATA)]
    for name in dict.fromkeys(("data_dir", *given, *chosen)):
        if found[name] is not None:
            start = rf"\n    {name}: [^=]*= field\(\s*default="
            old = re.search(rf"({start})(None|True|False)\b", config)
            if old is not None:
                config = f"{config[: old.end(1)]}{_as_code(found[name])}{config[old.end() :]}"
    return config


def _as_code(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)
