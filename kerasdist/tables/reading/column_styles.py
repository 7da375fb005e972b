"""Decides how the columns of a training's file write their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kerasdist.tables.kinds import MOST
from kerasdist.tables.reading.styles import Written, in_order, mark
from kerasdist.tables.survey import ColumnSurvey
from kerasdist.tables.values import Style


def find_styles(
    columns: Mapping[str, ColumnSurvey], *, commas: bool, points: bool
) -> dict[str, Written]:
    """The style of each column: most values are numbers in it.

    If 1.234 may be more than a thousand as well as little more than one, then the other columns
    decide, if they have one decimal mark. Else groups of three digits are thousands if the
    smaller numbers have no separator.

    Args:
        columns: What the columns hold.
        commas: Whether a lone comma in this file likely is a decimal comma.
        points: Whether a lone point likely is a decimal point.
    """
    best = {name: _best(column, commas) for name, column in columns.items()}
    marks = {
        mark(best[name][0])
        for name, column in columns.items()
        if column.separated and not _is_tied(best[name]) and _is_of_numbers(column, best[name])
    }
    return {
        name: _resolved(column, best[name], marks, points)
        if column.separated and _is_tied(best[name])
        else Written(best[name][0])
        for name, column in columns.items()
    }


def _best(column: ColumnSurvey, commas: bool) -> list[Style]:
    """The styles that most values fit, the likeliest first."""
    most = max(column.numbers.values(), default=0)
    return [style for style in in_order(commas) if column.numbers[style] == most]


def _is_tied(styles: Sequence[Style]) -> bool:
    return len({mark(style) for style in styles}) > 1


def _is_of_numbers(column: ColumnSurvey, styles: Sequence[Style]) -> bool:
    return column.numbers[styles[0]] >= MOST * column.present


def _resolved(
    column: ColumnSurvey, styles: Sequence[Style], marks: set[str], points: bool
) -> Written:
    if len(marks) == 1:
        return Written(next(style for style in styles if mark(style) in marks))
    has_points = "point" in styles  # As in 1.234.
    is_grouped = column.small > 0 and not column.large
    if points:
        return Written(styles[0], is_guess=has_points and is_grouped)
    if is_grouped:
        return Written("comma" if has_points else "thousands")
    if column.large:
        return Written("point" if has_points else "comma", is_guess=True)
    return Written(styles[0], is_guess=True)


def what_is_guessed(name: str, style: Style) -> str:
    """What to say of a column whose numbers may mean something else."""
    written, read, other = {
        "point": ("1.234", "1.234", "1234"),
        "comma": ("1,234", "1.234", "1234"),
        "thousands": ("1,234", "1234", "1.234"),
    }[style]
    return (
        f"a number like {written} in {name} is read as {read}, but may mean {other}: nothing in "
        "the file tells. If that is wrong, write these numbers without thousands separators and "
        "with decimal points"
    )
