"""Finds the column to predict, and decides between classes and numbers."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from kerasdist.errors import KerasdistError, closest
from kerasdist.tables.kinds import MOST, MOST_INTEGERS, listed
from kerasdist.tables.reading.styles import Written
from kerasdist.tables.schema import Target, Task
from kerasdist.tables.survey import LONGEST, ColumnSurvey, Survey
from kerasdist.tables.values import BOOLEANS, MAY_BE_CLASSES, Style, number

# A column with one of these names, in any case, is the target if there is no other.
EVIDENT = ("target", "label", "labels", "class", "y", "outcome", "survived", "species", "diagnosis")
MOST_CLASSES = 1000
# With fewer rows for a class on average, the target may be a wrong column.
FEWEST_ROWS = 4


def find_target(found: Survey, name: str | None, path: str) -> str:
    """The name of the target: the given one, or one that is evident. Else it is asked for."""
    names = list(found.columns)
    if name is not None:
        if name in found.columns:
            return name
        raise KerasdistError(
            f"Received `target={name!r}`, which is not a column of {path!r}. Expected one of "
            f"{listed(names)}.{closest(name, names)} Correct the name."
        )
    evident = [column for column in names if column.strip().lower() in EVIDENT]
    if len(evident) == 1:
        return evident[0]
    if not evident and _is_the_only_class(found):
        return next(name for name in reversed(names) if name not in found.indexes)
    several = f" ({' and '.join(evident)} both could be it)" if len(evident) > 1 else ""
    raise KerasdistError(
        f"It is not evident which column of {path!r} to predict{several}. Expected one of "
        f"{listed(names)}. Add it, for example `target={names[-1]!r}` "
        f"(`--target {shlex.quote(names[-1])}`)."
    )


def _is_the_only_class(found: Survey) -> bool:
    """Whether the last column has a few strings, and all others have numbers only."""
    *others, last = (c for name, c in found.columns.items() if name not in found.indexes)
    if not others or not all(_is_number(column) for column in others):
        return False
    return not _is_number(last) and not last.is_many and 2 <= len(_class_counts(last)) <= 20


def _is_number(column: ColumnSurvey) -> bool:
    return not column.present or max(column.numbers.values(), default=0) >= MOST * column.present


def understand_target(column: ColumnSurvey, task: Task | None, written: Written) -> Target:
    """The target's task and classes."""
    style = written.style
    if not column.present and len(_class_counts(column)) < 2:
        raise _unusable(column, "has no value in any row", "a value in each row")
    num_odd = column.present - column.numbers[style]
    is_number = column.present > 0 and not num_odd
    is_whole = column.whole[style] == column.numbers[style]
    few = not column.is_many and (
        column.num_values == 2
        or (column.num_values <= MOST_INTEGERS and column.present >= 4 * column.num_values)
    )
    is_nearly = column.present > 0 and column.numbers[style] >= MOST * column.present
    if task is None and is_nearly and num_odd and not (is_whole and few):
        raise _mixed(column, style)
    found: Task = "classification" if not is_number or (is_whole and few) else "regression"
    if (task or found) == "regression":
        if not is_nearly:
            raise _unusable(column, _odd_values(column, style), "numbers, for regression")
        if column.num_values == 1 and not column.is_many:
            raise _unusable(column, "has the same value in all rows", "different values")
        return Target(column.name, "regression", style, is_style_guessed=written.is_guess)
    if column.has_long:
        long = f"has texts of more than {LONGEST} characters"
        raise _unusable(column, long, "short names of classes")
    counts = column.values if is_number else _class_counts(column)
    if column.is_many or len(counts) > MOST_CLASSES:
        many = f"more than {min(len(counts), MOST_CLASSES):,}"
        raise _unusable(column, f"has {many} different values", "classes that come several times")
    if len(counts) > 2 and len(counts) == sum(counts.values()):
        raise _unusable(column, "has another value in each row", "classes that come several times")
    classes = class_names(counts, style if is_number else None)
    if len(classes) < 2:
        raise _unusable(column, f"has one class only, {classes[0]!r}", "two classes or more")
    return Target(column.name, "classification", style, classes)


def few_rows(target: str, counts: Sequence[int]) -> str | None:
    """What to say of classes that hardly come again: names or numbers of rows are no classes.

    Args:
        target: The name of the target.
        counts: How many rows each class has.
    """
    rows = sum(counts)
    if len(counts) < 3 or rows >= FEWEST_ROWS * len(counts):
        return None
    once = sum(count == 1 for count in counts)
    return (
        f"the target {target} has {len(counts):,} classes for {rows:,} rows, {once:,} of them with "
        "one row only: check that it is the column to predict (`--target`)"
    )


def _class_counts(column: ColumnSurvey) -> Counter[str]:
    """The strings that may be classes, and how often they come: also None and -."""
    also = {text: n for text, n in column.unsaid.items() if text.lower() in MAY_BE_CLASSES}
    return column.values + Counter(also)


def class_names(counts: Mapping[str, int], style: Style | None) -> tuple[str, ...]:
    """The classes in their order: numbers by size, strings by the alphabet.

    Args:
        counts: How often each value comes. Of values that mean the same, the most frequent one
            is the name.
        style: How they are written, if they are numbers; else None.

    Example:
        >>> class_names({"10": 1, "9.0": 1, "9": 1}, "point"), class_names({"10%": 1}, "point")
        (('9', '10'), ('10%',))
    """
    names: dict[Any, str] = {}
    is_boolean = {text.lower() for text in counts} in BOOLEANS
    for text in sorted(counts, key=lambda text: (-counts[text], text)):
        if style is not None:
            meaning: Any = number(text, style)
            names.setdefault(meaning, _plain(text, meaning))
        else:
            names.setdefault(text.lower() if is_boolean else text, text)
    return tuple(names[meaning] for meaning in sorted(names))


def _plain(text: str, value: float) -> str:
    """1.0 as 1; what is written in another way as it is."""
    try:
        is_plain = float(text) == value == int(value)
    except ValueError:
        return text
    return str(int(value)) if is_plain else text


def _mixed(column: ColumnSurvey, style: Style) -> KerasdistError:
    return KerasdistError(
        f"The target {column.name!r} {_odd_values(column, style)}; all "
        f"{column.numbers[style]:,} others are. Expected numbers only, or classes. Correct such "
        "values, or choose: `task='regression'` (`--task regression`) leaves out these rows, and "
        "`task='classification'` takes each different value as a class."
    )


def _odd_values(column: ColumnSurvey, style: Style) -> str:
    odd = (value for value in column.values if math.isnan(number(value, style)))
    shown = next(odd, column.odd)
    count = column.present - column.numbers[style]
    values = f"{count:,} values that are not numbers"
    values = "1 value that is not a number" if count == 1 else values
    return f"has {values}" + (f", such as {shown[:40]!r}" if shown is not None else "")


def _unusable(column: ColumnSurvey, found: str, expected: str) -> KerasdistError:
    return KerasdistError(
        f"The target {column.name!r} {found}. Expected {expected}. Choose another target, or "
        "correct the column."
    )
