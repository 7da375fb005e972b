"""Recipes: a folder with settings, data and a model. Loading one does not import TensorFlow."""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from kerasdist.errors import KerasdistError, closest

PARTS = ("config", "data", "model")


@dataclass(frozen=True)
class Recipe:
    """A recipe with its settings; what it builds is imported when it is asked for.

    Example:
        >>> import kerasdist
        >>> recipe = kerasdist.load_recipe("cifar10", learning_rate=0.01, source="synthetic")
        >>> recipe.config.learning_rate
        0.01
        >>> recipe.source()
        'synthetic'
    """

    name: str
    path: Path
    config: Any

    def build_model(self) -> Any:
        """The untrained model."""
        return self._part("model").build_model(self.config)

    def build_data(self, split: str) -> Any:
        """The data of `split`, "train" or "validation"."""
        return self._part("data").build_data(self.config, split)

    def source(self) -> str:
        """Where the data comes from: "files", "tfds", "synthetic", or "recipe" if it has no say."""
        find = getattr(self._part("data"), "find_source", None)
        return find(self.config) if find else "recipe"

    def _part(self, part: str) -> ModuleType:
        return _import_part(self.path, part)


def load_recipe(recipe: str | os.PathLike, **settings: Any) -> Recipe:
    """Loads a recipe by its folder, the name of one that comes with the package, or a config.json.

    Args:
        recipe: A folder, a name such as "cifar10", or the `config.json` of a run.
        **settings: Settings that differ from the recipe's defaults.

    Returns:
        The recipe with these settings.

    Raises:
        KerasdistError: If there is no such recipe or setting.
    """
    path, saved = find(recipe)
    kind = config_class(path)
    names = [field.name for field in dataclasses.fields(kind)]
    settings = {**{k: v for k, v in saved.items() if k in names}, **settings}
    for name in settings:
        if name not in names:
            raise KerasdistError(
                f"Received the setting {name!r} for the recipe {path.name!r}. Expected one of "
                f"{', '.join(names)}.{closest(name, names)} Correct the name."
            )
    return Recipe(path.name, path, kind(**settings))


def bundled() -> dict[str, Path]:
    """The recipes that come with the package, by name."""
    here = Path(__file__).resolve().parent
    # In a wheel they lie inside the package; in a checkout, beside it.
    for folder in (here / "bundled", here.parent / "recipes"):
        found = {p.parent.name: p.parent for p in sorted(folder.glob("*/config.py"))}
        if found:
            return found
    return {}


def find(recipe: str | os.PathLike) -> tuple[Path, Mapping[str, Any]]:
    """`(folder, settings saved with it)` of a recipe."""
    path = Path(recipe)
    if path.suffix == ".json" and path.is_file():
        return _from_config(path)
    if (path / "config.json").is_file() and not (path / "config.py").is_file():
        return _from_config(path / "config.json")
    if path.is_dir():
        missing = [f"{part}.py" for part in PARTS if not (path / f"{part}.py").is_file()]
        if missing:
            raise KerasdistError(
                f"Received the recipe folder {str(recipe)!r} without {', '.join(missing)}. "
                "Expected config.py, data.py and model.py. Add what is missing."
            )
        return path.resolve(), {}
    known = bundled()
    if str(recipe) in known:
        return known[str(recipe)], {}
    raise KerasdistError(
        f"Received the recipe {str(recipe)!r}. Expected a folder with config.py, data.py and "
        f"model.py, a run's config.json, or one of the recipes that come with the package: "
        f"{', '.join(known) or 'none'}.{closest(path.name, known)} Check the name."
    )


def _from_config(path: Path) -> tuple[Path, Mapping[str, Any]]:
    try:
        saved = json.loads(path.read_text())
        recipe, settings = saved["recipe"], saved["settings"]
    except (ValueError, KeyError, TypeError):
        raise KerasdistError(
            f"Received {str(path)!r}, which is not the config.json of a run of a recipe. Expected "
            "the fields 'recipe' and 'settings'. Give the config.json that `kerasdist fit` wrote."
        ) from None
    folder, _ = find(recipe)
    return folder, settings


def config_class(path: Path) -> type:
    kind = getattr(_import_part(path, "config"), "Config", None)
    if not dataclasses.is_dataclass(kind):
        raise KerasdistError(
            f"Received the recipe {path.name!r}, whose config.py has no dataclass `Config`. "
            "Expected one with every setting and its default. Add it."
        )
    return kind


def _import_part(path: Path, part: str) -> ModuleType:
    """Imports a recipe's file as part of a package of its own, so that it may import the others."""
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:8]
    package = f"kerasdist_recipe_{path.name}_{digest}"
    if package not in sys.modules:
        spec = importlib.machinery.ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [str(path)]
        sys.modules[package] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{package}.{part}")
