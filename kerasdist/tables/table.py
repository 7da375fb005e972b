"""`Table`: a CSV or Parquet file as arrays for a model, with what was learnt about its columns."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kerasdist.errors import KerasdistError
from kerasdist.tables import wording
from kerasdist.tables.files.opening import open_table
from kerasdist.tables.files.source import Source
from kerasdist.tables.hints import find_leaks, imbalance
from kerasdist.tables.kinds import Choice, Kinds, find_kinds
from kerasdist.tables.learning import encode, learn
from kerasdist.tables.raw import Raw, read
from kerasdist.tables.schema import Schema, Task
from kerasdist.tables.split import validation_rows
from kerasdist.tables.survey import Survey, survey
from kerasdist.tables.target import find_target, understand_target

SPLITS = ("train", "validation")


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
        split_seed: Decides which rows.
        header: Whether the first line of a CSV file has the names of the columns.
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
        split_seed: int = 0,
        header: bool = True,
        skip_bad: bool = False,
        schema: Schema | Mapping[str, Any] | None = None,
    ) -> None:
        check_split(validation_split)
        self.path = Path(path).expanduser()
        self._has_header, self._skip_bad = header, skip_bad
        self._split = (validation_split, split_seed)
        self._source = self._open(self.path)
        self._survey: Survey | None = None
        self._kinds: Kinds | None = None
        if schema is None:
            choice = Choice(tuple(ignore), tuple(numbers), tuple(categories), tuple(texts))
            self._look(target, task, choice)
        else:
            self.schema = schema if isinstance(schema, Schema) else Schema.from_json(schema)

    def _open(self, path: Path) -> Source:
        return open_table(path, has_header=self._has_header, skip_bad=self._skip_bad)

    def _look(self, target: str | None, task: Task | None, choice: Choice) -> None:
        source = self._source
        self._survey = found = survey(source)
        if not found.rows:
            raise KerasdistError(
                f"The table {str(self.path)!r} has names of columns, but no rows. Expected some. "
                "Check how it was written."
            )
        wording.check_header(source, found)
        name = find_target(found, target, str(self.path))
        choice.check(source.names, name)
        commas = source.decimal_commas
        aim, _ = understand_target(found.columns[name], task, decimal_commas=commas)
        self._kinds = find_kinds(found, name, choice, decimal_commas=commas)
        self.__dict__["_raw"] = raw = read(source, self._kinds.columns, aim)
        labels = raw.target if aim.task == "classification" else None
        chosen = validation_rows(raw.rows, labels, *self._split)
        self.__dict__["_validation_rows"] = chosen
        self.schema = learn(raw, self._kinds.columns, aim, ~chosen)

    @functools.cached_property
    def _raw(self) -> Raw:
        return read(self._source, self.schema.columns, self.schema.target)

    @functools.cached_property
    def _validation_rows(self) -> np.ndarray:
        labels = self._raw.target if self.task == "classification" else None
        return validation_rows(self._raw.rows, labels, *self._split)

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
        return int((~self._validation_rows).sum())

    @functools.cached_property
    def train(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The rows for training: `(arrays by name, targets)`."""
        return self._part(~self._validation_rows)

    @functools.cached_property
    def validation(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The rows for validation: `(arrays by name, targets)`."""
        return self._part(self._validation_rows)

    @functools.cached_property
    def _encoded(self) -> dict[str, np.ndarray]:
        return encode(self._raw, self.schema)

    def _part(self, rows: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        arrays = {name: array[rows] for name, array in self._encoded.items()}
        return arrays, as_targets(self._raw, self.schema)[rows]

    def read(self, path: str | os.PathLike[str]) -> dict[str, np.ndarray]:
        """The arrays of another file with the same columns, in any order. It needs no target.

        Args:
            path: A file that ends in .csv, .tsv or .parquet.
        """
        source = self._open(Path(path).expanduser())
        return encode(read(source, self.schema.columns, None), self.schema)

    def describe(self) -> dict[str, str]:
        """What was found, by topic: short texts for people."""
        chosen, target = self._validation_rows, self.schema.target
        counts = (int((~chosen).sum()), int(chosen.sum()))
        lines = wording.of_table(self._source, self._survey, self._kinds, self.schema, self._raw)
        lines["split"] = f"{counts[0]:,} rows to train on, {counts[1]:,} to validate"
        notes = [
            f"{name} tells {target.name} exactly: leave it out with --ignore if it is not "
            "known when you predict"
            for name in find_leaks(self._raw, self.schema, ~chosen)
        ]
        if target.classes and self._raw.target is not None:
            rows = np.bincount(self._raw.target, minlength=len(target.classes))
            rare = imbalance(rows, target.classes)
            notes += [rare] if rare else []
        return {**lines, **({"careful": "; ".join(notes)} if notes else {})}

    def __repr__(self) -> str:
        lines = [f"{title}: {text}" for title, text in self.describe().items()]
        return "\n".join([f"Table {str(self.path)!r}", *lines])


def check_split(validation_split: float) -> None:
    """Refuses a part for validation that is not a part."""
    if isinstance(validation_split, bool) or not 0 <= validation_split < 1:
        raise KerasdistError(
            f"Received `validation_split={validation_split!r}`. Expected a part from 0 to below "
            "1. Use for example 0.2 to validate on every fifth row."
        )


def as_targets(raw: Raw, schema: Schema) -> np.ndarray:
    """The targets as the loss takes them: class numbers, or a column of numbers."""
    if raw.target is None:  # An empty table.
        return np.zeros((0, 1) if schema.target.task == "regression" else 0, np.int64)
    return raw.target[:, None] if schema.target.task == "regression" else raw.target
