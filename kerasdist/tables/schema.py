"""What a table's columns mean to a model. Saved with a run, so that other files are read alike."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from kerasdist.recipes.own_data.splits import Split
from kerasdist.tables.files.source import Expected
from kerasdist.tables.values import LARGEST_EXACT, Style

Kind = Literal["number", "integer", "boolean", "category", "text", "date"]
Task = Literal["classification", "regression"]

# The class numbers of a category: 0 stands for a missing value, 1 for one that is rare or new.
NO_VALUE, OTHER, FIRST_VALUE = 0, 1, 2
# The numbers of words: 0 fills short texts, 1 stands for a word that is rare or new.
PADDING, OTHER_WORD, FIRST_WORD = 0, 1, 2


@dataclass(frozen=True)
class Column:
    """A column that the model reads.

    Attributes:
        name: Its name in the file.
        kind: What it holds. An "integer" has few different values and is read in two ways: as a
            number and as a category. A "boolean" is a category with two values.
        style: How its numbers are written.
        centers: The median of each number that is made of a value: one, but five for a date.
        scales: The typical distance from it.
        has_missing: Whether the training part misses values: then the model sees which.
        values: The values of a category that the model knows.
        unknown: The part of the values in the training's file that it does not know, or that are
            not numbers.
        is_style_guessed: Whether its numbers may be written in another style: nothing in the
            training's file told.
    """

    name: str
    kind: Kind
    style: Style = "point"
    centers: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    has_missing: bool = False
    values: tuple[str | int, ...] = ()
    unknown: float = 0.0
    is_style_guessed: bool = False

    @property
    def has_numbers(self) -> bool:
        """Whether the model reads it as numbers."""
        return self.kind in ("number", "integer", "date")

    @property
    def has_category(self) -> bool:
        """Whether the model reads it as a category."""
        return self.kind in ("integer", "boolean", "category")

    @property
    def is_read_as_number(self) -> bool:
        """Whether its values in a file are numbers, and not strings."""
        return self.kind in ("number", "integer")

    @property
    def is_large(self) -> bool:
        """Whether float32 does not hold its numbers well."""
        return self.is_read_as_number and any(abs(c) > LARGEST_EXACT for c in self.centers)

    @property
    def num_ids(self) -> int:
        """How many ids its category has, with those for missing and other values."""
        return FIRST_VALUE + len(self.values)


@dataclass(frozen=True)
class Target:
    """The column that the model predicts.

    Attributes:
        name: Its name in the file.
        task: What is predicted: one of several classes, or a number.
        style: How its numbers are written.
        classes: The classes in their order, if the task is classification.
        center: The mean of the training part, if the task is regression.
        scale: Its standard deviation.
        is_style_guessed: Whether its numbers may be written in another style.
    """

    name: str
    task: Task
    style: Style = "point"
    classes: tuple[str, ...] = ()
    center: float = 0.0
    scale: float = 1.0
    is_style_guessed: bool = False


@dataclass(frozen=True)
class Schema:
    """All that is needed to read a file for a trained model.

    Attributes:
        columns: The columns that the model reads, in their order.
        target: What it predicts.
        vocabulary: The words that it knows, the most frequent first.
        num_words: How many words of an example it reads.
        left_out: For each column that the model does not read, why.
        notes: What else people should know about the columns.
        decimal_commas: Whether a lone comma was a decimal comma in the training's file.
        width: How many columns that file had, if they had no names; else 0.
        split: Which rows or files were for validation.
    """

    columns: tuple[Column, ...]
    target: Target
    vocabulary: tuple[str, ...] = ()
    num_words: int = 0
    left_out: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    decimal_commas: bool = False
    width: int = 0
    split: Split | None = None

    @property
    def expected(self) -> Expected:
        """What is known about other files for the model."""
        names = {column.name for column in self.columns}
        return Expected(frozenset({*names, self.target.name}), True, self.target.name, self.width)

    def of_kind(self, *kinds: Kind) -> tuple[Column, ...]:
        return tuple(column for column in self.columns if column.kind in kinds)

    @property
    def features(self) -> tuple[str, ...]:
        """The arrays that the model reads."""
        found = {
            "numbers": self.num_numbers > 0,
            "categories": self.num_categories > 0,
            "words": self.num_words > 0,
        }
        return tuple(name for name, is_there in found.items() if is_there)

    @property
    def num_numbers(self) -> int:
        return sum(len(c.centers) + c.has_missing for c in self.columns if c.has_numbers)

    @property
    def num_categories(self) -> int:
        return sum(column.has_category for column in self.columns)

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many ids each category has."""
        return tuple(column.num_ids for column in self.columns if column.has_category)

    def to_json(self) -> dict[str, Any]:
        """As plain values.

        Example:
            >>> target = Target("label", "classification", classes=("no", "yes"))
            >>> schema = Schema((Column("age", "number", centers=(30.0,), scales=(9.0,)),), target)
            >>> Schema.from_json(schema.to_json()) == schema
            True
        """
        content = _plain(dataclasses.asdict(self))
        # One text instead of 20,000: words hold no blanks.
        return {**content, "vocabulary": " ".join(self.vocabulary)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Schema:
        """From the plain values that `to_json` gives."""
        columns = tuple(Column(**_with_tuples(column)) for column in content["columns"])
        target = Target(**_with_tuples(content["target"]))
        return cls(
            columns,
            target,
            vocabulary=tuple(content["vocabulary"].split()),
            num_words=content["num_words"],
            left_out=dict(content["left_out"]),
            notes=tuple(content["notes"]),
            decimal_commas=content["decimal_commas"],
            width=content["width"],
            split=content["split"] and Split.from_json(content["split"]),
        )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, (tuple, list)) else value


def _with_tuples(content: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in content.items()}
