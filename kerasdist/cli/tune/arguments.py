"""Parses `kerasdist tune RECIPE`, and makes the arguments of each of its trials. No TensorFlow."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from kerasdist.cli.finding.choice import without
from kerasdist.cli.fit_arguments import FitOptions, parse_fit
from kerasdist.cli.options import OUTPUT_OPTIONS, RUN_OPTIONS, count_option
from kerasdist.cli.parser import Option, Options
from kerasdist.cli.settings import recipe_groups
from kerasdist.cli.tune import space
from kerasdist.cli.tune.space import Space, Value
from kerasdist.errors import KerasdistError, closest
from kerasdist.recipes import places

_PROG = "kerasdist tune"
_NAME = re.compile(r"[\w.-]+")
# `tune` decides about these itself.
_NOT_TUNED = ("run_dir", "resume", "dry_run", "find_batch_size", "find_lr")
_TUNE_ONLY: Options = {
    "trials": count_option(20, "how many trials the study has, over all its starts", "20"),
    "search": Option(
        str | None,
        None,
        "a setting to search: learning_rate=1e-4:1e-1:log, units=16:128:16 or optimizer=adam,sgd; "
        "repeat it for more settings",
        hint="(default: SEARCH or search_space of the recipe, or around its own values)",
    ),
    "name": Option(
        str | None,
        None,
        "name of the study, which is in tune/NAME",
        hint="(default: the recipe's name)",
        expected="letters, digits, dots, hyphens and underscores",
        example="rates",
        valid=lambda value: _NAME.fullmatch(value) is not None and value.strip(".") != "",
    ),
    "jobs": count_option(1, "trials at a time; each gets its own GPUs, if there are any", "2"),
    "prune": Option(
        Literal["median", "halving", "none"],
        "median",
        "stop trials early: median (worse than half of the others after the same epoch), halving "
        "(successive halving) or none",
    ),
}
TUNE_OPTIONS: Options = {
    **_TUNE_ONLY,
    **{name: option for name, option in RUN_OPTIONS.items() if name not in _NOT_TUNED},
}
# Two starts with different values of these still are the same study.
_MAY_DIFFER = {
    *OUTPUT_OPTIONS,
    "trials",
    "jobs",
    "search",  # It is compared as the space.
    "devices",
    "log_every",
    "summary_every",
    "profile",
    "log_placement",
    "keep",
    "keep_best",
    "save_every",
    "soft_placement",
    "memory_growth",
    "memory_limit",
    "data_dir",
    "name",
}


@dataclass(frozen=True)
class TuneOptions:
    """The parsed arguments of `kerasdist tune`.

    Attributes:
        fit: What every trial starts from.
        argv: The arguments of every trial, without those of the search.
        options: The settings and options that a trial may have, by name.
        space: What is searched.
        name: The name of the study.
    """

    fit: FitOptions
    argv: list[str]
    options: Options
    space: Space
    name: str

    @property
    def seed(self) -> int:
        return int(self.fit.run["seed"])

    @property
    def monitor(self) -> str | None:
        chosen: str | None = self.fit.run["monitor"]
        return chosen

    @property
    def epochs(self) -> int | None:
        """How many epochs a trial has; None if that is not known, or searched itself."""
        known = {**self.fit.run, **self.fit.settings}
        is_known = known.get("steps") is None and "epochs" not in self.space.dimensions
        epochs: int | None = known.get("epochs") if is_known else None
        return epochs

    def of_trial(self, settings: Mapping[str, Value]) -> list[str]:
        """The arguments of `kerasdist fit` with these settings."""
        names = {name: f"--{name.replace('_', '-')}" for name in settings}
        kept = without(self.argv, flags=list(names.values()), values=list(names.values()))
        for name, value in settings.items():
            kept += _as_arguments(names[name], value, self.options.get(name))
        return kept

    def identity(self) -> dict[str, Any]:
        """What is the same in all starts of a study."""
        fit = self.fit
        options = {k: v for k, v in fit.run.items() if k not in _MAY_DIFFER | set(fit.settings)}
        own = {k: v for k, v in fit.settings.items() if k not in _MAY_DIFFER}
        found: dict[str, Any] = {"space": self.space.described(), **own, **options}
        if fit.recipe is not None:
            found["recipe"] = places.find(fit.recipe).name
        else:
            found |= {"model": str(fit.model), **fit.model_arguments, "data": str(fit.data)}
        return found


def parse_tune(argv: Sequence[str]) -> TuneOptions:
    """`kerasdist tune RECIPE [options]`."""
    texts, rest = _searches(argv)
    fit = parse_fit(rest, _PROG, TUNE_OPTIONS)
    options: dict[str, Option] = dict(RUN_OPTIONS)
    place = None
    if fit.recipe is not None:
        place, groups = recipe_groups(fit.recipe, rest[1:], _PROG, TUNE_OPTIONS)
        options |= groups[place.path.name]
    given = [f"--{name}" for name in _TUNE_ONLY]
    kept = without(rest, flags=[f"--{name}" for name in ("json", "quiet")], values=given)
    name = fit.run["name"] or (place.name if place is not None else _class_name(fit))
    path = None if place is None else place.path
    made = TuneOptions(fit, kept, options, space.find(path, options, texts), name)
    _check_space(made)
    return made


def _class_name(fit: FitOptions) -> str:
    return "model" if fit.model is None else fit.model.name


def _searches(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """`(the values of --search, the other arguments)`."""
    texts: list[str] = []
    rest: list[str] = []
    arguments = iter(argv)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if name == "--search":
            value = value if equals else next(arguments, "")
            if not value or value.startswith("-"):
                raise KerasdistError(
                    "Received `--search` without a value. Expected a setting and its range. For "
                    "example: `--search learning_rate=1e-4:1e-1:log`."
                )
            texts.append(value)
        else:
            rest.append(argument)
    return texts, rest


def _check_space(tune: TuneOptions) -> None:
    """Refuses settings and values that `fit` would refuse, before anything is trained."""
    for name, dimension in tune.space.dimensions.items():
        if tune.fit.recipe is not None and name not in tune.options:
            raise KerasdistError(
                f"{name!r} is not a setting that can be searched. Expected a setting of "
                f"{tune.fit.recipe!r}, or an option of `fit`.{closest(name, tune.options)} "
                f"`kerasdist fit {tune.fit.recipe} --help` lists them."
            )
        for value in dimension.ends:
            parse_fit(tune.of_trial({name: value}), _PROG, RUN_OPTIONS)


def _as_arguments(flag: str, value: Value, option: Option | None) -> list[str]:
    if isinstance(value, bool) and option is not None and option.kind is bool:
        if value:
            return [flag]
        return [f"--no-{flag[2:]}"] if option.default is True else []
    if value is None:
        return [flag, "none"]
    return [flag, str(value).lower() if isinstance(value, bool) else str(value)]
