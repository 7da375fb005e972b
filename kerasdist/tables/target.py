"""Finds the column to predict, and decides between classes and numbers."""

from __future__ import annotations

import math
from collections.abc import Collection

from kerasdist.errors import KerasdistError, closest
from kerasdist.tables.kinds import MOST_INTEGERS, listed
from kerasdist.tables.schema import Target, Task
from kerasdist.tables.survey import ColumnSurvey, Survey
from kerasdist.tables.values import number

# A column with one of these names, in any case, is the target if there is no other.
EVIDENT = ("target", "label", "labels", "class", "y", "outcome", "survived", "species", "diagnosis")
MOST_CLASSES = 1000


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
        return names[-1]
    several = f" ({' and '.join(evident)} both could be it)" if len(evident) > 1 else ""
    raise KerasdistError(
        f"It is not evident which column of {path!r} to predict{several}. Expected one of "
        f"{listed(names)}. Add it, for example `target={names[-1]!r}` (`--target {names[-1]}`)."
    )


def _is_the_only_class(found: Survey) -> bool:
    """Whether the last column has a few strings, and all others have numbers only."""
    *others, last = found.columns.values()
    if not others or not all(_is_number(column) for column in others):
        return False
    return not _is_number(last) and not last.is_many and 2 <= last.num_values <= 20


def _is_number(column: ColumnSurvey) -> bool:
    return not column.present or max(column.numbers.values(), default=0) >= 0.95 * column.present


def understand_target(column: ColumnSurvey, task: Task | None, *, decimal_commas: bool) -> Target:
    """The target's task and classes."""
    style = column.style(decimal_commas)
    if not column.present:
        raise _unusable(column, "has no value in any row", "a value in each row")
    is_number = column.numbers[style] == column.present
    is_whole = is_number and column.whole == column.present
    few = not column.is_many and (
        column.num_values == 2
        or (column.num_values <= MOST_INTEGERS and column.present >= 4 * column.num_values)
    )
    found: Task = "classification" if not is_number or (is_whole and few) else "regression"
    if (task or found) == "regression":
        if not is_number:
            odd = next(v for v in column.values if math.isnan(number(v, style)))
            raise _unusable(column, f"has the value {odd[:40]!r}", "numbers, for regression")
        if column.num_values == 1 and not column.is_many:
            raise _unusable(column, "has the same value in all rows", "different values")
        return Target(column.name, "regression", style)
    if column.is_many or column.num_values > MOST_CLASSES:
        many = f"more than {min(column.num_values, MOST_CLASSES):,}"
        raise _unusable(column, f"has {many} different values", "classes that come several times")
    if column.num_values > 2 and column.num_values == column.present:
        raise _unusable(column, "has another value in each row", "classes that come several times")
    classes = class_names(column.values, is_whole=is_whole)
    if len(classes) < 2:
        raise _unusable(column, f"has one class only, {classes[0]!r}", "two classes or more")
    return Target(column.name, "classification", style, classes)


def class_names(values: Collection[str], *, is_whole: bool) -> tuple[str, ...]:
    """The classes in their order: numbers by size, strings by the alphabet.

    Example:
        >>> class_names(["10", "9.0", "9"], is_whole=True)
        ('9', '10')
    """
    if is_whole:
        return tuple(str(n) for n in sorted({int(float(value)) for value in values}))
    return tuple(sorted(values))


def _unusable(column: ColumnSurvey, found: str, expected: str) -> KerasdistError:
    return KerasdistError(
        f"The target {column.name!r} {found}. Expected {expected}. Choose another target, or "
        "correct the column."
    )
