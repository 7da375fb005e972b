"""Loads recipes: folders with settings, data and a model. Does not import TensorFlow."""

from __future__ import annotations

import ast
import dataclasses
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any

from kerasdist.errors import KerasdistError, closest
from kerasdist.recipes.importing import import_part
from kerasdist.recipes.places import Place, find

if TYPE_CHECKING:
    import keras

# In the metadata of a field of `Config`: the setting is what `learn(config)` found in the data. It
# is saved with a run, but it is not an option.
LEARNT = "learnt"
# If an option of this kind is not given, `learn` chooses it.
FROM_DATA = "from_data"
# What the option means if no value follows it.
WITHOUT_VALUE = "without_value"


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

    def build_stages(self) -> list[tuple[int, Callable[[keras.Model], None]]]:
        """The later stages of a training; none without `build_stages(config)` in model.py.

        It returns `(after, change)` for each stage: the number of epochs after which it begins, and
        a function that changes the model and compiles it with a new optimizer.
        """
        build = getattr(import_part(self.path, "model"), "build_stages", None)
        return list(build(self.config) or []) if build else []

    def load_initial(self, model: keras.Model) -> None:
        """Loads weights before a new training, if model.py has `load_initial(config, model)`."""
        load = getattr(import_part(self.path, "model"), "load_initial", None)
        if load is not None:
            load(self.config, model)

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

    For a path with data (see docs/your-own-data.md) this is the recipe for data of its kind.

    Args:
        recipe: A folder, a name such as "cifar10", the `config.json` of a run, or data.
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
    return load_from(find(recipe), settings)


def load_from(place: Place, given: Mapping[str, Any], *, learns_again: bool = True) -> Recipe:
    """Loads the recipe of a place that was found. See `load_recipe`.

    Without `learns_again`, a run's recipe keeps all that it has learnt, whatever is given.
    """
    path, saved, settings = place.path, place.settings, dict(given)
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
    config = config_class(path)(**settings)
    learnt = [name for name, field in fields.items() if field.metadata.get(LEARNT)]
    if any(name in given for name in learnt):
        return Recipe(place.name, path, config)
    if any(name in saved for name in learnt):
        changed = {n for n, v in given.items() if v != saved.get(n, default_of(fields[n]))}
        anew, keeping = _learns_again(path)
        if not learns_again or not changed & (anew | keeping):
            return Recipe(place.name, path, config)
        if changed & anew:
            config = dataclasses.replace(config, **{n: default_of(fields[n]) for n in learnt})
    return Recipe(place.name, path, _with_learnt(path, config, learnt))


def _learns_again(path: Path) -> tuple[set[str], set[str]]:
    """The settings that change what a run has learnt, if it is trained again with other values.

    They are in config.py: with others of `LEARN_ANEW`, all is learnt anew. With others of
    `LEARN_KEEPING`, such as a folder that has moved, `learn` gets what the run has learnt.
    """
    config = import_part(path, "config")
    return {*getattr(config, "LEARN_ANEW", ())}, {*getattr(config, "LEARN_KEEPING", ())}


def _with_learnt(path: Path, config: Any, learnt: Sequence[str]) -> Any:
    """The settings with what `learn(config)` of config.py finds in the data: a dict of settings."""
    learn = getattr(import_part(path, "config"), "learn", None)
    if learn is None:
        return config
    found = learn(config)
    if not isinstance(found, Mapping) or not {*learnt} <= {*found}:
        raise KerasdistError(
            f"Received {found!r} from `learn` of the recipe {path.name!r}. Expected a dict with "
            f"{', '.join(sorted(learnt)) or 'settings'}. Correct it in config.py."
        )
    return dataclasses.replace(config, **found)


def settings_of(config: Any) -> dict[str, Any]:
    """All settings by name, with those that were learnt."""
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}


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


def summary(path: Path) -> str:
    """What a recipe is: the first line of the docstring of model.py, which is not imported."""
    try:
        docstring = ast.get_docstring(ast.parse((path / "model.py").read_text()))
    except (SyntaxError, UnicodeDecodeError):
        return ""
    return (docstring or "").split("\n")[0]


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
