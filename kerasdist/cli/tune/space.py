"""The search space of `kerasdist tune`: which settings are tried, and in which ranges."""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasdist.cli.parser import Option, Options
from kerasdist.errors import KerasdistError
from kerasdist.recipes.importing import import_part

# Other digits would only make commands long.
_DIGITS = 4
# What is searched if nobody says otherwise: around the recipe's own values.
_AROUND = {"learning_rate": 10.0, "weight_decay": 10.0}
_FROM_0 = {"dropout": 0.5, "label_smoothing": 0.3}

Value = int | float | str | bool | None


@dataclass(frozen=True)
class Range:
    """Numbers from `low` to `high`, both included."""

    low: float
    high: float
    is_log: bool = False
    step: float | None = None
    is_whole: bool = False

    def suggest(self, trial: Any, name: str) -> Value:
        if self.is_whole:
            step = 1 if self.step is None else int(self.step)
            return int(
                trial.suggest_int(name, int(self.low), int(self.high), step=step, log=self.is_log)
            )
        value = trial.suggest_float(name, self.low, self.high, step=self.step, log=self.is_log)
        return float(f"{value:.{_DIGITS}g}")

    @property
    def ends(self) -> tuple[Value, ...]:
        return (int(self.low), int(self.high)) if self.is_whole else (self.low, self.high)

    def __str__(self) -> str:
        how = ":log" if self.is_log else "" if self.step is None else f":{self.step:g}"
        return f"{self.low:g}:{self.high:g}{how}"


@dataclass(frozen=True)
class Choice:
    """One of several values."""

    values: tuple[Value, ...]

    def suggest(self, trial: Any, name: str) -> Value:
        found: Value = trial.suggest_categorical(name, self.values)
        return found

    @property
    def ends(self) -> tuple[Value, ...]:
        return self.values

    def __str__(self) -> str:
        return ",".join(str(value) for value in self.values)


Dimension = Range | Choice


@dataclass(frozen=True)
class Space:
    """The settings to try. `function`, a recipe's `search_space`, decides instead of `dimensions`.

    Attributes:
        dimensions: By the name of a setting.
        function: Takes Optuna's trial, and returns the settings of that trial.
    """

    dimensions: Mapping[str, Dimension]
    function: Callable[[Any], Any] | None = None

    def suggest(self, trial: Any) -> dict[str, Value]:
        """The settings of a trial."""
        if self.function is None:
            return {name: each.suggest(trial, name) for name, each in self.dimensions.items()}
        found = self.function(trial)
        if not isinstance(found, Mapping) or not found:
            raise KerasdistError(
                f"`search_space(trial)` in the recipe's config.py returned {found!r}. Expected a "
                "dict with the settings of the trial, such as "
                '`{"learning_rate": trial.suggest_float("learning_rate", 1e-4, 1e-1, log=True)}`.'
            )
        return dict(found)

    def described(self) -> dict[str, str]:
        """The space as texts, as `--search` takes them."""
        if self.function is not None:
            return {"search_space": "the function in config.py"}
        return {name: str(dimension) for name, dimension in self.dimensions.items()}


def find(path: Path | None, options: Options, texts: Sequence[str]) -> Space:
    """The space of `--search`, or else of the recipe, or else around the recipe's settings.

    Args:
        path: The recipe's folder; None with a model and a data class.
        options: The recipe's settings and the command's options.
        texts: The values of `--search`.
    """
    if texts:
        return Space(dict(_named(text, options) for text in texts))
    config = None if path is None else import_part(path, "config")
    function = getattr(config, "search_space", None)
    if function is not None:
        return Space({}, function)
    listed = getattr(config, "SEARCH", None)
    if listed is not None:
        return Space({name: _of_recipe(name, value, options) for name, value in listed.items()})
    found = _defaults(options)
    if not found:
        raise KerasdistError(
            "There is nothing to search: the recipe has no setting "
            f"{', '.join((*_AROUND, 'batch_size', *_FROM_0))}, and no `SEARCH` in its config.py. "
            "Name some settings, for example `--search units=16:128`."
        )
    return Space(found)


def parse(name: str, text: str, option: Option | None) -> Dimension:
    """A range `low:high`, `low:high:log`, `low:high:step`, or choices `a,b,c`.

    Example:
        >>> parse("rate", "1e-4:0.1:log", None)
        Range(low=0.0001, high=0.1, is_log=True, step=None, is_whole=False)
        >>> parse("units", "16,32", None)
        Choice(values=(16, 32))
    """
    if ":" not in text:
        values = tuple(_value(each.strip()) for each in text.split(","))
        if len(values) < 2 or len(set(values)) < len(values):
            raise _wrong(name, text)
        return Choice(values)
    low_text, high_text, *how = text.split(":")
    is_whole = _is_whole(option, (low_text, high_text, *(h for h in how if h != "log")))
    try:
        low, high = float(low_text), float(high_text)
        step = float(how[0]) if how and how[0] != "log" else None
    except ValueError:
        raise _wrong(name, text) from None
    is_log = how == ["log"]
    is_valid = low < high and len(how) <= 1 and (step is None or 0 < step <= high - low)
    is_valid &= not is_log or low > 0
    are_whole = all(float(n).is_integer() for n in (low, high, step or 1.0) if math.isfinite(n))
    if not is_valid or not math.isfinite(high - low) or (is_whole and not are_whole):
        raise _wrong(name, text)
    return Range(low, high, is_log, step, is_whole)


def _named(text: str, options: Options) -> tuple[str, Dimension]:
    name, equals, values = text.partition("=")
    name = name.strip().lstrip("-").replace("-", "_")
    if not equals or not name:
        raise _wrong(text, "")
    return name, parse(name, values, options.get(name))


def _of_recipe(name: str, value: Any, options: Options) -> Dimension:
    if isinstance(value, str):
        return parse(name, value, options.get(name))
    if isinstance(value, (list, tuple)) and len(value) > 1:
        return Choice(tuple(value))
    raise KerasdistError(
        f"Received {value!r} for {name!r} in `SEARCH` of the recipe's config.py. Expected a text "
        'such as "1e-4:1e-1:log", or a list of at least two values. Correct it.'
    )


def _wrong(name: str, text: str) -> KerasdistError:
    given = f"{name}={text}" if text else name
    return KerasdistError(
        f"Received `--search {given}`. Expected a setting and a range, `low:high`, "
        "`low:high:log` or `low:high:step`, or at least two different values with commas. For "
        "example: `--search learning_rate=1e-4:1e-1:log --search optimizer=adam,sgd`."
    )


def _value(text: str) -> Value:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return {"true": True, "false": False, "none": None}.get(text.lower(), text)


def _is_whole(option: Option | None, texts: Sequence[str]) -> bool:
    if option is not None:
        kinds = typing.get_args(option.kind) or (option.kind,)
        return int in kinds and float not in kinds
    return all(text.lstrip("-").isdigit() for text in texts)


def _defaults(options: Options) -> dict[str, Dimension]:
    """Ranges around the values of settings that most recipes have."""
    found: dict[str, Dimension] = {}
    for name, factor in _AROUND.items():
        value = _number(options, name)
        if value:
            found[name] = Range(_round(value / factor), _round(value * factor), is_log=True)
    size = _number(options, "batch_size")
    if size is not None and size >= 2:
        found["batch_size"] = Choice((int(size) // 2, int(size), 2 * int(size)))
    for name, high in _FROM_0.items():
        if _number(options, name) is not None:
            found[name] = Range(0.0, high)
    return found


def _number(options: Options, name: str) -> float | None:
    value = options[name].default if name in options else None
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return value if is_number else None


def _round(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}")
