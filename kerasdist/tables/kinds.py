"""Decides what each column of a table holds, and which columns are left out."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import cast, get_args

from kerasdist.errors import KerasdistError, closest
from kerasdist.tables.reading.styles import Written
from kerasdist.tables.schema import Column, Kind
from kerasdist.tables.survey import ColumnSurvey, Survey
from kerasdist.tables.values import LARGEST_EXACT, Style

# Whole numbers with at most this many different values may stand for categories.
MOST_INTEGERS = 24
# Of more such columns, none does: they are measurements, as the pixels of an image.
MOST_INTEGER_COLUMNS = 20
# The part of a column's values that must be numbers (or dates) for the column to be so.
MOST = 0.95
# In a column that numbers the rows, this part of them may repeat a number or have none: one in so
# many, and in a small table so many if it has so many rows for each.
_ROWS_PER_EXCEPTION = 1000
_EXCEPTIONS, _LEAST_ROWS = 2, 20
_WORDS_OF_A_TEXT = 3.0
_IDENTIFIER = re.compile(
    r"((?i:.*[\W_])?(?i:id|uuid|guid|index|key)|.*[a-z0-9](Id|ID|Uuid|UUID)|(?i:unnamed)(: 0)?)"
)


@dataclass(frozen=True)
class Choice:
    """What the user decides about columns, by their names."""

    ignore: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """All columns that it names."""
        return (*self.ignore, *self.numbers, *self.categories, *self.texts)

    def check(self, names: Collection[str], target: str) -> None:
        """Refuses names that the table does not have, or that come twice."""
        seen: dict[str, str] = {target: "target"}
        for option in ("ignore", "numbers", "categories", "texts"):
            for name in getattr(self, option):
                if name not in names:
                    raise KerasdistError(
                        f"Received `{option}` with {name!r}, which is not a column of the table. "
                        f"Expected one of {listed(names)}.{closest(name, names)} Correct the name."
                    )
                if name in seen:
                    raise KerasdistError(
                        f"Received the column {name!r} in both `{seen[name]}` and `{option}`. "
                        "Expected it once. Remove it from one of them."
                    )
                seen[name] = option


@dataclass(frozen=True)
class Kinds:
    """The columns that are read, and why others are not.

    Attributes:
        columns: The columns with their kinds, before anything is learnt about their values.
        left_out: For each column that is left out, why.
        notes: What should be said about columns that are read.
    """

    columns: tuple[Column, ...]
    left_out: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def find_kinds(found: Survey, target: str, choice: Choice, styles: Mapping[str, Written]) -> Kinds:
    """The kinds of all columns but the target.

    Args:
        found: What the columns hold.
        target: The target.
        choice: What the user decides.
        styles: How the columns write their numbers.
    """
    columns, left_out, notes = [], {}, []
    for name, column in found.columns.items():
        if name == target:
            continue
        style = styles[name].style
        found_kind = "the index of pandas" if name in found.indexes else _kind(column, style)
        kind = _chosen(column, choice) or found_kind
        if kind not in get_args(Kind):
            left_out[name] = kind
            continue
        is_guess = styles[name].is_guess and kind in ("number", "integer")
        columns.append(Column(name, cast(Kind, kind), style, is_style_guessed=is_guess))
        odd = column.present - (column.numbers[style] if kind != "date" else column.dates)
        if kind in ("number", "integer", "date") and odd:
            what = "date" if kind == "date" else "number"
            notes.append(f"{name}: {_odd_values(odd, what)} as missing")
    if not columns:
        reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
        raise KerasdistError(
            f"The table has no column to learn from, besides the target {target!r} ({reasons}). "
            "Expected at least one. Name columns in `categories`, `numbers` or `texts` "
            "(`--categories` and so on) to use them anyway."
        )
    if sum(column.kind == "integer" for column in columns) > MOST_INTEGER_COLUMNS:
        columns = [
            dataclasses.replace(column, kind="number") if column.kind == "integer" else column
            for column in columns
        ]
    return Kinds(tuple(columns), left_out, tuple(notes))


def _chosen(column: ColumnSurvey, choice: Choice) -> Kind | str | None:
    if column.name in choice.ignore:
        return "ignored"
    if column.name in choice.numbers:
        return "number"
    if column.name in choice.categories:
        return "category"
    return "text" if column.name in choice.texts else None


def _kind(column: ColumnSurvey, style: Style) -> Kind | str:
    """The kind of a column, or the reason why it is left out."""
    present = column.present
    if not present:
        return "empty"
    if column.num_values == 1 and not column.is_many and not column.missing:
        (value,) = column.values
        return f"always {value[:20]}"
    if column.num_values == 1 and not column.is_many:
        return "category"  # Whether it is there is what it says.
    if column.numbers[style] >= MOST * present:
        return _kind_of_numbers(column, style)
    if column.dates >= MOST * present:
        return "date"
    if column.unclear_dates >= MOST * present:
        return "dates that are not written like 2024-12-31"
    if column.is_boolean():
        return "boolean"
    return _kind_of_strings(column)


def _odd_values(count: int, what: str) -> str:
    if count == 1:
        return f"1 value that is not a {what} counts"
    return f"{count:,} values that are not {what}s count"


def _kind_of_numbers(column: ColumnSurvey, style: Style) -> Kind | str:
    exceptions = column.present - column.whole[style] + column.num_repeats
    if _is_identifier(column, style, exceptions):
        return f"another number in {'nearly ' if exceptions else ''}each row"
    if column.whole[style] < column.present:
        return "number"
    few = not column.is_many and 3 <= column.num_values <= MOST_INTEGERS
    if not few or column.present < 4 * column.num_values:
        return "number"
    largest = max(abs(column.lowest), abs(column.highest))
    return "integer" if largest <= LARGEST_EXACT else "category"


def _is_identifier(column: ColumnSurvey, style: Style, exceptions: int) -> bool:
    """Whether whole numbers only number the rows, but for a footer or a row that comes twice."""
    present, whole = column.present, column.whole[style]
    allowed = max(present // _ROWS_PER_EXCEPTION, min(_EXCEPTIONS, present // _LEAST_ROWS))
    if present < 2 or exceptions > allowed:
        return False
    is_counted = whole - allowed <= column.highest - column.lowest + 1 <= whole
    return is_counted or _IDENTIFIER.fullmatch(column.name) is not None


def _kind_of_strings(column: ColumnSurvey) -> Kind | str:
    variety = 1.0 if column.is_many else column.num_values / column.present
    words = column.words / column.present
    if words >= _WORDS_OF_A_TEXT and (variety > 0.5 or (words >= 8 and variety > 0.05)):
        return "text"
    if column.is_many or (variety > MOST and column.present > 1):
        return "another value in nearly each row"
    return "category"


def listed(names: Collection[str], most: int = 30) -> str:
    """Names for a message, not too many."""
    shown = [repr(name) for name in list(names)[:most]]
    more = len(names) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")
