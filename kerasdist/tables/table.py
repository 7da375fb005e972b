"""`Table`: a CSV or Parquet file as arrays for a model, with what was learnt about its columns."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kerasdist.errors import KerasdistError, warn
from kerasdist.recipes.own_data.splits import check_fraction
from kerasdist.tables import wording
from kerasdist.tables.files.opening import open_table
from kerasdist.tables.files.source import Expected, Source, unreadable
from kerasdist.tables.hints import find_leaks, imbalance, rounding
from kerasdist.tables.kinds import Choice, find_kinds
from kerasdist.tables.learning import as_targets, encode, learn
from kerasdist.tables.reading.column_styles import find_styles, what_is_guessed
from kerasdist.tables.reading.raw import Raw, read, read_again, rows_at
from kerasdist.tables.schema import Column, Schema, Target, Task
from kerasdist.tables.split import find_split, validation_rows
from kerasdist.tables.survey import survey
from kerasdist.tables.target import few_rows, find_target, understand_target
from kerasdist.tables.unknown import warn_of_unknown, with_shares


class Table:
    """A table in a CSV or Parquet file, as arrays for a model.

    The columns are understood by their values: numbers, categories, booleans, dates, texts. What
    is learnt about them (medians, categories, words) comes from the training rows alone. Reading
    does not import TensorFlow, and keeps four bytes per value or word in memory.

    Args:
        path: A file that ends in .csv, .tsv or .parquet.
        target: The column to predict; may be left out if its name is evident, such as "label".
        task: "classification" or "regression"; by default found by the target's values.
        ignore: Columns to leave out.
        numbers: Columns that are numbers, whatever they look like.
        categories: Columns that are categories.
        texts: Columns that are texts.
        validation_split: The part of the rows that is for validation.
        seed: Decides which rows.
        header: Whether the first line of a CSV file has the names of the columns. If None, it
            should, and a line of values is refused.
        skip_bad: Leave out lines with too many or too few values, instead of raising.
        schema: What was learnt before, from the `schema` of another table. Nothing is then learnt.

    Example:
        >>> import pathlib, tempfile, kerasdist
        >>> path = pathlib.Path(tempfile.mkdtemp()) / "people.csv"
        >>> rows = [f"{20 + i % 50},{'fm'[i % 2]},{'yn'[i % 2]}" for i in range(100)]
        >>> _ = path.write_text("\\n".join(["age,sex,married", *rows]))
        >>> table = kerasdist.Table(path, target="married")
        >>> table.class_names, sorted(table.train[0])
        (('n', 'y'), ['categories', 'numbers'])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        target: str | None = None,
        task: Task | None = None,
        ignore: Sequence[str] = (),
        numbers: Sequence[str] = (),
        categories: Sequence[str] = (),
        texts: Sequence[str] = (),
        validation_split: float = 0.2,
        seed: int = 0,
        header: bool | None = None,
        skip_bad: bool = False,
        schema: Schema | Mapping[str, Any] | None = None,
    ) -> None:
        check_fraction(validation_split)
        self.path = Path(path).expanduser()
        self._has_header, self._skip_bad = header, skip_bad
        self._split = (validation_split, seed)
        choice = Choice(tuple(ignore), tuple(numbers), tuple(categories), tuple(texts))
        if schema is None:
            named = [*choice.names, *([] if target is None else [target])]
            self._expected = Expected(frozenset(named))
            self._source = self._open(self.path)
            self.schema = self._learnt(target, task, choice)
        else:
            self.schema = schema if isinstance(schema, Schema) else Schema.from_json(schema)
        self._expected = self.schema.expected
        if schema is not None:
            self._source = self._open(self.path)

    def _open(self, path: Path) -> Source:
        return open_table(
            path,
            has_header=self._has_header,
            skip_bad=self._skip_bad,
            expected=self._expected,
        )

    def _learnt(self, target: str | None, task: Task | None, choice: Choice) -> Schema:
        source = self._source
        found = survey(source)
        if not found.rows:
            raise _without_rows(self.path)
        if self._has_header is None and target not in source.names:
            wording.check_header(source, found)
        name = find_target(found, target, str(self.path))
        choice.check(source.names, name)
        commas = source.decimal_commas
        styles = find_styles(found.columns, commas=commas, points=source.decimal_points)
        aim = understand_target(found.columns[name], task, styles[name])
        kinds = find_kinds(found, name, choice, styles)
        raw = read_again(source, kinds.columns, aim, commas=commas)
        split = find_split(raw, kinds.columns, aim, *self._split)
        schema = learn(raw, kinds, aim, ~validation_rows(raw, kinds.columns, aim, split))
        width = len(source.names) if self._has_header is False else 0
        schema = with_shares(schema, raw)
        return dataclasses.replace(schema, decimal_commas=commas, width=width, split=split)

    @functools.cached_property
    def _raw(self) -> Raw:
        schema = self.schema
        commas = schema.decimal_commas
        raw = read_again(self._source, schema.columns, schema.target, commas=commas)
        if not raw.rows and not raw.without_target:
            raise _without_rows(self.path)
        warn_of_unknown(schema.columns, raw, self.path)
        return raw

    @functools.cached_property
    def _is_validation(self) -> np.ndarray:
        columns, target, split = self.schema.columns, self.schema.target, self.schema.split
        if split is None or (split.share, split.seed) != self._split:
            split = find_split(self._raw, columns, target, *self._split)
        return validation_rows(self._raw, columns, target, split)

    @property
    def task(self) -> Task:
        """ "classification" or "regression"."""
        return self.schema.target.task

    @property
    def class_names(self) -> tuple[str, ...]:
        """The classes in the order of their numbers; empty for regression."""
        return self.schema.target.classes

    @property
    def num_train(self) -> int:
        """The number of rows for training."""
        return int((~self._is_validation).sum())

    @functools.cached_property
    def train(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The rows for training: `(arrays by name, targets)`."""
        return self._part(~self._is_validation)

    @functools.cached_property
    def validation(self) -> tuple[dict[str, np.ndarray], np.ndarray] | None:
        """The rows for validation: `(arrays by name, targets)`; None if there are none."""
        return self._part(self._is_validation) if self._is_validation.any() else None

    @property
    def test(self) -> None:
        """None: a table has no rows for testing. Evaluate on another file."""
        return None

    @property
    def all(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """All rows: `(arrays by name, targets)`."""
        return encode(self._raw, self.schema), as_targets(self._raw, self.schema)

    def _part(self, rows: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        raw = self._raw.take(rows)
        return encode(raw, self.schema), as_targets(raw, self.schema)

    def read(self, path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
        """The arrays of another file with the same columns, in any order. It needs no target.

        Args:
            path: A file that ends in .csv, .tsv or .parquet.
        """
        source, schema = self._open(Path(path).expanduser()), self.schema
        raw = read(source, schema.columns, None, commas=schema.decimal_commas)
        warn_of_unknown(schema.columns, raw, source.path)
        if not raw.rows:
            raise _without_rows(source.path)
        if raw.repeats and not self._skip_bad:
            raise KerasdistError(
                f"Line {raw.repeats[0]} of {str(source.path)!r} holds the names of the columns "
                "again. Expected a row of values, because each row gets an answer. Remove such "
                "lines, or use `--skip-bad` (`skip_bad=True`) to leave them out."
            )
        skipped = raw.skipped + len(raw.repeats)
        if skipped:
            warn(
                f"{skipped:,} bad line{'s' * (skipped > 1)} of {str(path)!r} left out, "
                "without an answer. "
                "Expected a value for each column. Correct these lines to get all answers."
            )
        return encode(raw, schema)

    def row_numbers(self, path: str | os.PathLike[str]) -> np.ndarray | None:
        """The number in the file of each row that `read` gives, counted from 1.

        It is None if lines with too many or too few values are refused: then no row is left out.

        Args:
            path: A file that ends in .csv, .tsv or .parquet.
        """
        if not self._skip_bad:
            return None
        blocks = self._open(Path(path).expanduser()).blocks()
        return np.array([number for block in blocks for number in block.numbers], np.int64)

    @staticmethod
    def schema_of(content: Mapping[str, Any]) -> Schema:
        """What was learnt, from the plain values that `schema.to_json()` gives.

        Args:
            content: Plain values, as in the settings of a run.
        """
        return Schema.from_json(content)

    @staticmethod
    def raw_inputs(content: Mapping[str, Any]) -> Any:
        """The way from raw strings and numbers to the arrays in TensorFlow, a `tf.Module`.

        Args:
            content: What was learnt, as plain values.
        """
        from kerasdist.tables.raw_inputs import RawInputs

        return RawInputs(Schema.from_json(content))

    def describe(self) -> dict[str, str]:
        """What was found, by topic: short texts for people."""
        chosen = self._is_validation
        num_rows, num_validation = len(chosen), int(chosen.sum())
        lines = wording.of_table(self._source, self.schema, self._raw)
        lines["split"] = (
            f"{num_rows - num_validation:,} rows to train on, {num_validation:,} to validate"
        )
        notes = self._careful(~chosen)
        return {**lines, **({"careful": "; ".join(notes)} if notes else {})}

    def _careful(self, rows: np.ndarray) -> list[str]:
        """What people should check before they trust the model.

        Args:
            rows: The rows for training.
        """
        schema, raw, target = self.schema, self._raw, self.schema.target
        read: list[Column | Target] = [target, *schema.columns]
        found = [what_is_guessed(c.name, c.style) for c in read if c.is_style_guessed]
        found += [
            f"{name} tells {target.name} exactly: leave it out with `ignore` (`--ignore`) if it "
            "is not known when you predict"
            for name in find_leaks(raw, schema, rows)
        ]
        more = [rounding(raw, schema)]
        if target.classes and raw.target is not None:
            counts = np.bincount(raw.target, minlength=len(target.classes))
            more += [few_rows(target.name, counts.tolist()), imbalance(counts, target.classes)]
        return found + [text for text in more if text]

    def describe_examples(self, split: str, positions: Sequence[int]) -> list[dict[str, str]]:
        """The first values of some rows, as they are in the file, and the number of their line.

        Args:
            split: "train" or "validation".
            positions: The numbers of the rows in the split.
        """
        is_there = self._is_validation == (split == "validation")
        numbers = np.flatnonzero(is_there)[list(positions)].tolist()
        target = self.schema.target
        rows = rows_at(self._source, target, self._raw.styles[target.name], numbers)
        return [wording.of_row(self._source, self.schema, *rows[number]) for number in numbers]

    def __repr__(self) -> str:
        lines = [f"{title}: {text}" for title, text in self.describe().items()]
        return "\n".join([f"Table {str(self.path)!r}", *lines])


def _without_rows(path: Path) -> KerasdistError:
    return unreadable(path, "has names of columns, but no rows", "some", "Check how it was written")
