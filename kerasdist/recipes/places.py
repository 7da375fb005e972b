"""Finds what a command names: a recipe, a run, or your own data that a recipe can read."""

from __future__ import annotations

import functools
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kerasdist.errors import KerasdistError, closest
from kerasdist.recipes.importing import forget_if_edited
from kerasdist.recipes.own_data import listing
from kerasdist.recipes.own_data.kinds import KINDS, described, look

PARTS = ("config", "data", "model")
# The folder of the package `kerasdist`.
PACKAGE = Path(__file__).resolve().parents[1]
# "kerasdist:cifar10" is the bundled recipe, whatever else is called cifar10, and "template:image"
# is the recipe for data of the kind "image".
BUNDLED, TEMPLATE = "kerasdist:", "template:"


@dataclass(frozen=True)
class Place:
    """A recipe that was found.

    Attributes:
        path: The recipe's folder.
        name: What its runs are called.
        settings: Settings that a run saved, or that follow from the data.
        is_data: Whether data was named, and the recipe is the one for its kind.
        is_run: Whether a run was named.
    """

    path: Path
    name: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    is_data: bool = False
    is_run: bool = False


def bundled(inside: str = "bundled", beside: str = "recipes") -> dict[str, Path]:
    """The folders of the bundled recipes, by name."""
    # A wheel has them inside the package, a checkout beside it.
    for folder in (PACKAGE / inside, PACKAGE.parent / beside):
        found = {p.parent.name: p.parent for p in sorted(folder.glob("*/config.py"))}
        if found:
            return found
    return {}


def templates() -> dict[str, Path]:
    """The folders of the templates by name: the recipes for data of each kind."""
    return bundled("templates", "templates")


def reference_to(path: Path) -> str:
    """What config.json calls the recipe in a folder, so that it is found again."""
    for prefix, known in (("", bundled()), (TEMPLATE, templates())):
        for name, folder in known.items():
            if folder == path:
                return f"{prefix}{name}"
    return str(path)


def find(recipe: str | os.PathLike[str]) -> Place:
    """Finds a recipe, a run's recipe and settings, or the recipe for a path with data."""
    saved = saved_config(recipe)
    if saved is not None:
        return _of_run(recipe, saved)
    text, known = str(recipe), bundled()
    for prefix, candidates in ((BUNDLED, known), (TEMPLATE, templates())):
        if text.startswith(prefix):
            return _that_comes_along(text, prefix, candidates)
    path = Path(recipe).expanduser()
    missing = [f"{part}.py" for part in PARTS if not (path / f"{part}.py").is_file()]
    if path.is_dir() and not missing:
        forget_if_edited(path.resolve())
        return Place(path.resolve(), path.resolve().name)
    if path.is_dir() and len(missing) < len(PARTS):
        raise KerasdistError(
            f"Received the recipe folder {text!r} without {', '.join(missing)}. Expected "
            "config.py, data.py and model.py. Add what is missing."
        )
    if path.exists():
        return _with_data(path, text)
    if text in known:
        return Place(known[text], text)
    raise _nothing_there(text, path, known)


def _nothing_there(text: str, path: Path, known: Mapping[str, Path]) -> KerasdistError:
    """The error for what is neither a path that exists nor a name that is known."""
    is_file = path.suffix.lower() in {suffix for kind in KINDS for suffix in kind.suffixes}
    is_path = is_file or "/" in text or os.sep in text
    said = f"The file or folder {text!r} does not exist." if is_path else ""
    guess = closest(path.name, [*({} if is_file else known), *_beside(path, files=is_file)])
    return KerasdistError(
        f"{said or f'Received the recipe {text!r}.'} Expected a folder with config.py, data.py and "
        f"model.py, a run's config.json, a folder with one folder of {described()} per class, a "
        f"table such as people.csv, or one of the bundled recipes: {', '.join(known) or 'none'}."
        f"{guess} Check the name."
    )


def _beside(path: Path, *, files: bool) -> list[str]:
    """The names of the folders beside a path, or of the files."""
    try:
        there = sorted(path.absolute().parent.iterdir())
    except OSError:  # It does not exist, or may not be read.
        return []
    return [each.name for each in there if (each.is_file() if files else each.is_dir())]


def _of_run(recipe: str | os.PathLike[str], saved: Mapping[str, Any]) -> Place:
    if "recipe" not in saved:
        raise KerasdistError(
            f"Received {str(recipe)!r}, the run of a model and a provider. Expected a recipe or "
            "the run of a recipe. Use `kerasdist fit` for this run."
        )
    reference = saved["recipe"]
    # A run that says "cifar10" means the bundled recipe, also beside a folder of this name.
    place = find(f"{BUNDLED}{reference}" if reference in bundled() else reference)
    return Place(place.path, saved.get("name", place.name), saved["settings"], is_run=True)


def _that_comes_along(text: str, prefix: str, known: Mapping[str, Path]) -> Place:
    name = text.removeprefix(prefix)
    if name not in known:
        raise KerasdistError(
            f"Received the recipe {text!r}. Expected {prefix} and one of {', '.join(known)}."
            f"{closest(name, known)} Correct the name."
        )
    return Place(known[name], name)


def _with_data(path: Path, text: str) -> Place:
    """The recipe for the kind of data at a path."""
    known = bundled()
    try:
        kind = look(path)
    except KerasdistError:
        if text in known:  # A folder of this name may hold something else.
            return Place(known[text], text)
        raise
    absolute = Path(os.path.abspath(path))
    if text in known:
        _tell_that_it_wins(text, absolute)
    name = absolute.stem if absolute.is_file() else absolute.name
    recipe = templates()[kind.recipe]
    return Place(recipe, name or "data", {"data_dir": str(absolute)}, is_data=True)


@functools.cache  # A command looks several times.
def _tell_that_it_wins(text: str, path: Path) -> None:
    print(
        f"kerasdist: {text!r} is the folder {str(path)!r}, not the recipe that comes with "
        f"kerasdist. For that one, name {BUNDLED}{text}",
        file=sys.stderr,
    )


def saved_config(recipe: str | os.PathLike[str]) -> dict[str, Any] | None:
    """The config.json of a run, if `recipe` is that file or the run's folder, else None."""
    path = Path(recipe).expanduser()
    if path.is_dir() and not (path / "config.py").is_file():
        path /= "config.json"
    if path.suffix != ".json" or not path.is_file():
        return None
    try:
        saved = json.loads(path.read_text())
        if "kerasdist" in saved and not {"recipe", "model"} & set(saved):
            raise _of_program(str(path.parent))
        if "model" in saved:
            _ = saved["model_arguments"], saved["data"], saved["data_arguments"]
        else:
            _ = saved["recipe"], saved["settings"]
    except (ValueError, KeyError, TypeError):
        if Path(recipe).expanduser().is_dir() and _is_data(path.parent):
            return None  # Folders from elsewhere may have a config.json, too.
        raise KerasdistError(
            f"Received {str(path)!r}, which is not the config.json of a run. Expected the fields "
            "'recipe' and 'settings'. Use a config.json that `kerasdist fit` wrote."
        ) from None
    return saved


def _of_program(run: str) -> KerasdistError:
    return KerasdistError(
        f"A Python program made the run {run!r}: only the program has its data. Expected a run of "
        f"`kerasdist fit`. In Python, use `kerasdist.evaluate({run!r}, x, y)`, or start the "
        "program again to continue the run."
    )


def _is_data(folder: Path) -> bool:
    """Whether a folder has folders with files that kerasdist can train on."""
    try:
        kind = look(folder)
    except KerasdistError:
        return False
    inside = (Path(entry.path) for entry in listing.entries(folder) if entry.is_dir())
    counts = (listing.count_suffixes(each) for each in inside)
    return any(found[suffix] for found in counts for suffix in kind.suffixes)
