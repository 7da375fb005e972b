"""A recipe's settings and a class's constructor arguments, as command-line options."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerasdist.cli.options import OUTPUT_OPTIONS, RUN_OPTIONS
from kerasdist.cli.parser import Option, Options
from kerasdist.errors import KerasdistError
from kerasdist.recipes import places
from kerasdist.recipes import recipe as recipes
from kerasdist.recipes.class_file import REQUIRED, ClassFile
from kerasdist.recipes.own_data.kinds import KINDS
from kerasdist.recipes.places import Place

# Nothing reads these without a recipe, and a recipe that reads them has them as settings.
ONLY_RECIPES = ("data_dir", "source")


def recipe_groups(
    recipe: str, argv: list[str], prog: str, options: Options
) -> tuple[Place, dict[str, Options]]:
    """Finds a recipe and groups the options: its settings, the command's and the output's.

    Args:
        recipe: A folder, a name, a run or its config.json.
        argv: What follows on the command line; `--preset` changes the defaults.
        prog: The command, for error messages.
        options: The command's options.
    """
    place = places.find(recipe)
    path, saved = place.path, place.settings
    chosen = _value_given(argv, "--preset")
    if chosen is not None and chosen != saved.get("preset", chosen):
        raise KerasdistError(
            f"Received `--preset {chosen}` for a run that was trained with the preset "
            f"{saved['preset']!r}. A run keeps its preset. To train with another preset, name the "
            f"recipe instead of the run: `{prog} {path.name} --preset {chosen}`."
        )
    given = {} if chosen is None else {"preset": chosen}
    settings = _settings(path, {**recipes.preset(path, {**saved, **given}), **saved})
    for name in {*settings} & {*options}:
        # None: the recipe leaves it to the command, or to the data.
        if settings[name].default is None and not _is_from_data(path, name):
            settings[name] = dataclasses.replace(settings[name], default=options[name].default)
    others = {k: v for k, v in options.items() if k not in settings and k not in ONLY_RECIPES}
    if place.is_data:
        del settings["data_dir"]  # It was named already.
    return place, {path.name: settings, "run": others, "output": OUTPUT_OPTIONS}


def of_other_data(place: Place, named: str, setting: str) -> str:
    """Which kinds of data have a setting that the recipe for this kind lacks; "" if none has it.

    Args:
        place: The recipe that lacks it.
        named: The recipe or the data as the command named it.
        setting: The name of the setting.
    """
    known = places.templates()
    own = next((kind for kind in KINDS if known.get(kind.recipe) == place.path), None)
    if own is None:
        return ""
    found = [
        kind.title
        for kind in KINDS
        if kind is not own and setting.removeprefix("no_") in _settings(known[kind.recipe], {})
    ]
    if not found:
        return ""
    *most, last = found
    titles = f"{', '.join(most)} and {last}" if most else last
    if not place.is_data:
        here = f"trains on {own.title}"
    else:
        here = f"is a {own.title[:-1]}" if own.form == "file" else f"holds {own.title}"
    flag = f"--{setting.replace('_', '-')}"
    return f" `{flag}` is an option of {titles}; {named!r} {here}."


def _is_from_data(path: Path, name: str) -> bool:
    """Whether `learn` of a recipe chooses a setting that is not given."""
    fields = {field.name: field for field in dataclasses.fields(recipes.config_class(path))}
    return bool(fields[name].metadata.get(recipes.FROM_DATA))


def _settings(path: Path, saved: Mapping[str, Any]) -> dict[str, Option]:
    """The fields of a recipe's `Config` as options.

    A field with the name of an option of `fit` (such as `batch_size`) is checked like that option.
    """
    kind = recipes.config_class(path)
    hints = typing.get_type_hints(kind)
    options = {}
    for field in dataclasses.fields(kind):
        if field.metadata.get(recipes.LEARNT):
            continue
        default = recipes.default_of(field)
        if field.name in saved:
            default = recipes.like_default(saved[field.name], default)
        template = RUN_OPTIONS.get(field.name, Option(str, None, ""))
        options[field.name] = dataclasses.replace(
            template,
            kind=hints[field.name],
            default=REQUIRED if default is dataclasses.MISSING else default,
            meaning=field.metadata.get("help", template.meaning),
            names=_names(kind, field.name),
            hint="(default: from the data)"
            if field.metadata.get(recipes.FROM_DATA) and default is None
            else template.hint,
            without_value=field.metadata.get(recipes.WITHOUT_VALUE),
        )
    return options


def _names(kind: type, setting: str) -> tuple[str, ...]:
    """The values that a class above `kind` lists for a setting, for `optimizer: str = "adam"`."""
    for each in kind.__mro__:
        hint = typing.get_type_hints(each).get(setting)
        if typing.get_origin(hint) is typing.Literal:
            return tuple(str(value) for value in typing.get_args(hint))
    return ()


def class_options(source: ClassFile, saved: Mapping[str, Any]) -> dict[str, Option]:
    """The arguments of a class's constructor as options."""
    options = {}
    for argument in source.arguments():
        default = argument.default
        if argument.name in saved:
            default = recipes.like_default(saved[argument.name], default)
        options[argument.name] = Option(argument.type, default, argument.help)
    return options


def _value_given(argv: list[str], name: str) -> str | None:
    """The value of `name VALUE` or `name=VALUE`, before it is known which options exist."""
    for i, argument in enumerate(argv):
        if argument == name:
            return argv[i + 1] if i + 1 < len(argv) else None
        if argument.startswith(f"{name}="):
            return argument.partition("=")[2]
    return None
