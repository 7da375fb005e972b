"""Loads recipes: folders with settings, data and a model. Does not import TensorFlow."""

from __future__ import annotations

import ast
import dataclasses
import json
import os
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any

from kerasdist.errors import KerasdistError, closest
from kerasdist.recipes.importing import forget_if_edited, import_part

if TYPE_CHECKING:
    import keras

PARTS = ("config", "data", "model")
# The folder of the package `kerasdist`.
PACKAGE = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Recipe:
    """A recipe with its settings. Its model and data are imported when they are built.

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

    def build_model(self) -> keras.Model:
        """Builds the untrained model."""
        return self._function("model", "build_model")(self.config)

    def build_data(self, split: str) -> Any:
        """Builds the data of `split`, "train" or "validation"; any form that `fit` takes."""
        return self._function("data", "build_data")(self.config, split)

    def build_augment(self) -> Callable[..., Any] | None:
        """Builds the recipe's `augment(batch, seed)` for the training data; None without one."""
        build = self.optional("build_augment")
        return build(self.config) if build else None

    def build_callbacks(self) -> Any:
        """Builds the recipe's Keras callbacks for a training; None without any.

        `build_callbacks(config)` is in callbacks.py, or in model.py. It returns a list.
        """
        part = "callbacks" if (self.path / "callbacks.py").is_file() else "model"
        if part == "callbacks":
            return self._function(part, "build_callbacks")(self.config)
        build = getattr(import_part(self.path, part), "build_callbacks", None)
        return build(self.config) if build else None

    def optional(self, name: str) -> Any:
        """A name that the recipe's data.py may define; None if it does not. See `extras`."""
        return getattr(import_part(self.path, "data"), name, None)

    def source(self) -> str:
        """Where the data comes from: "files", "tfds", "synthetic"; "recipe" if it does not say."""
        find = self.optional("find_source")
        return find(self.config) if find else "recipe"

    def _function(self, part: str, name: str) -> Callable[..., Any]:
        function = getattr(import_part(self.path, part), name, None)
        if function is None:
            raise KerasdistError(
                f"The recipe {self.name!r} has no function `{name}` in its {part}.py. Expected "
                "`build_model(config)` in model.py, `build_data(config, split)` in data.py and, if "
                "there is a callbacks.py, `build_callbacks(config)` in it. Add the function."
            )
        return function


def load_recipe(recipe: str | os.PathLike[str], **settings: Any) -> Recipe:
    """Loads a recipe from a folder, by the name of a bundled recipe, or from a run's config.json.

    Args:
        recipe: A folder, a name such as "cifar10", or the `config.json` of a run.
        **settings: Settings that differ from the recipe's defaults.

    Returns:
        The recipe with these settings.

    Raises:
        KerasdistError: If there is no such recipe or setting, or a setting is missing.

    Example:
        >>> import kerasdist
        >>> recipe = kerasdist.load_recipe("cifar10", source="synthetic", num_train=20)
        >>> recipe.build_data("train")["image"].shape
        (20, 32, 32, 3)
    """
    path, saved = find(recipe)
    fields = {field.name: field for field in dataclasses.fields(config_class(path))}
    for name in (*saved, *settings):
        if name not in fields:
            raise KerasdistError(
                f"Received the setting {name!r} for the recipe {path.name!r}. Expected one of "
                f"{', '.join(fields)}.{closest(name, fields)} Correct the name."
            )
    saved = {name: like_default(saved[name], default_of(fields[name])) for name in saved}
    settings = {**preset(path, {**saved, **settings}), **saved, **settings}
    types = typing.get_type_hints(config_class(path))
    for name, value in settings.items():
        _check_type(name, value, types[name])
    for name, field in fields.items():
        if name not in settings and default_of(field) is dataclasses.MISSING:
            raise KerasdistError(
                f"Received no `{name}` for the recipe {path.name!r}. Expected a value, because it "
                "has no default. Add it."
            )
    return Recipe(path.name, path, config_class(path)(**settings))


def preset(path: Path, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """The settings of the chosen preset: `settings["preset"]`, or the recipe's default.

    A recipe with presets has a setting `preset` and, in config.py, a dict `PRESETS` with the
    settings of each.
    """
    known = getattr(import_part(path, "config"), "PRESETS", None)
    if known is None:
        return {}
    default = {field.name: default_of(field) for field in dataclasses.fields(config_class(path))}
    name = settings.get("preset", default.get("preset"))
    if name not in known:
        raise KerasdistError(
            f"Received `preset={name!r}`. Expected one of {', '.join(known)}."
            f"{closest(name, known)} Correct the name."
        )
    return known[name]


def _check_type(name: str, value: Any, kind: Any) -> None:
    """Raises if a value does not have the type of its setting. Checks plain types only."""
    parts = typing.get_args(kind) if isinstance(kind, UnionType) else (kind,)
    allowed: list[Any] = []
    for part in parts:
        is_literal = typing.get_origin(part) is typing.Literal
        allowed += [type(None)] if part is type(None) else []
        if is_literal and value in typing.get_args(part):
            return
        if part in (int, str, bool):
            allowed.append(part)
        elif part is float:
            allowed += [float, int]
        elif not is_literal and part is not type(None):
            return
    if (isinstance(value, bool) and bool not in allowed) or not isinstance(value, tuple(allowed)):
        expected = getattr(kind, "__name__", None) or str(kind).replace("typing.", "")
        raise KerasdistError(
            f"Received `{name}={value!r}`. Expected {expected}. Correct the setting."
        )


def default_of(field: dataclasses.Field[Any]) -> Any:
    """The default of a setting, or `dataclasses.MISSING`."""
    if field.default_factory is not dataclasses.MISSING:
        return field.default_factory()
    return field.default


def like_default(value: Any, default: Any) -> Any:
    """Turns a list from a JSON file back into a tuple, if the default is one."""
    return tuple(value) if isinstance(default, tuple) and isinstance(value, list) else value


def bundled(inside: str = "bundled", beside: str = "recipes") -> dict[str, Path]:
    """The folders of the bundled recipes, by name. `scaffold` finds the templates with it, too."""
    # A wheel has them inside the package, a checkout beside it.
    for folder in (PACKAGE / inside, PACKAGE.parent / beside):
        found = {p.parent.name: p.parent for p in sorted(folder.glob("*/config.py"))}
        if found:
            return found
    return {}


def summary(path: Path) -> str:
    """What a recipe is: the first line of the docstring of model.py, which is not imported."""
    try:
        docstring = ast.get_docstring(ast.parse((path / "model.py").read_text()))
    except (SyntaxError, UnicodeDecodeError):
        return ""
    return (docstring or "").split("\n")[0]


def find(recipe: str | os.PathLike[str]) -> tuple[Path, Mapping[str, Any]]:
    """The folder of a recipe, and the settings that a run saved, if `recipe` is a run."""
    saved = saved_config(recipe)
    if saved is not None:
        if "recipe" not in saved:
            raise KerasdistError(
                f"Received {str(recipe)!r}, the run of a model and a provider. Expected a recipe "
                "or the run of a recipe. Use `kerasdist fit` for this run."
            )
        folder, _ = find(saved["recipe"])
        return folder, saved["settings"]
    path, known = Path(recipe).expanduser(), bundled()
    missing = [f"{part}.py" for part in PARTS if not (path / f"{part}.py").is_file()]
    if path.is_dir() and not missing:
        forget_if_edited(path.resolve())
        return path.resolve(), {}
    # A folder with the name of a bundled recipe may hold something else, for example its data.
    if str(recipe) in known and len(missing) == len(PARTS):
        return known[str(recipe)], {}
    if path.is_dir():
        raise KerasdistError(
            f"Received the recipe folder {str(recipe)!r} without {', '.join(missing)}. "
            "Expected config.py, data.py and model.py. Add what is missing."
        )
    raise KerasdistError(
        f"Received the recipe {str(recipe)!r}. Expected a folder with config.py, data.py and "
        f"model.py, a run's config.json, or one of the bundled recipes: "
        f"{', '.join(known) or 'none'}.{closest(path.name, known)} Check the name."
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
        if "model" in saved:
            _ = saved["model_arguments"], saved["data"], saved["data_arguments"]
        else:
            _ = saved["recipe"], saved["settings"]
    except (ValueError, KeyError, TypeError):
        raise KerasdistError(
            f"Received {str(path)!r}, which is not the config.json of a run. Expected the fields "
            "'recipe' and 'settings'. Use a config.json that `kerasdist fit` wrote."
        ) from None
    return saved


def config_class(path: Path) -> type:
    """The dataclass `Config` of a recipe, which has its settings."""
    try:
        kind = getattr(import_part(path, "config"), "Config", None)
    except KerasdistError:
        raise
    except Exception as error:
        raise KerasdistError(
            f"The recipe {path.name!r} is broken: its config.py cannot be imported: "
            f"{type(error).__name__}: {error}. Expected Python with a dataclass `Config`. Correct "
            "the file."
        ) from error
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        raise KerasdistError(
            f"The recipe {path.name!r} has no dataclass `Config` in its config.py. Expected one "
            "with every setting and its default. Add it."
        )
    return kind
