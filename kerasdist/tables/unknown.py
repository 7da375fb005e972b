"""Warns about columns of a file whose values are mostly new to a model, or cannot be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kerasdist.errors import warn
from kerasdist.tables.kinds import MOST
from kerasdist.tables.reading.builders import NO_CODE, Names
from kerasdist.tables.reading.raw import Raw
from kerasdist.tables.schema import Column, Schema

# A larger part of unknown values of a category than this is worth a warning.
_MANY = 0.5


@dataclass(frozen=True)
class _Unknown:
    count: int
    present: int
    example: str

    @property
    def share(self) -> float:
        return self.count / self.present if self.present else 0.0


def with_shares(schema: Schema, raw: Raw) -> Schema:
    """The schema with the part of each column's values that the model does not know anyway."""
    columns = tuple(
        dataclasses.replace(column, unknown=_unknown(column, raw).share)
        for column in schema.columns
    )
    return dataclasses.replace(schema, columns=columns)


def warn_of_unknown(columns: Sequence[Column], raw: Raw, path: Path) -> None:
    """Warns about each column that has many more unknown values than in training.

    Args:
        columns: What the model learnt about the columns.
        raw: What is in the file.
        path: The file.
    """
    for column in columns:
        found = _unknown(column, raw)
        if column.has_numbers:
            what = "dates" if column.kind == "date" else "numbers"
            is_worse = found.share > column.unknown + 1 - MOST
            problem, effect = f"cannot be read as {what}", "They count as missing."
        else:
            known = ", ".join(repr(value) for value in column.values[:3])
            is_worse = found.share > max(_MANY, (1 + column.unknown) / 2)
            problem = "are unknown to the model (new, or only once in the training rows)"
            effect = "They all mean the same to it."
            what = f"values such as {known}" if known else "the values of the training"
        if is_worse:
            warn(
                f"{found.count:,} of {found.present:,} values of the column {column.name!r} in "
                f"{str(path)!r} {problem}, such as {found.example[:40]!r}. {effect} Expected "
                f"{what}. Check how the column is written."
            )


def _unknown(column: Column, raw: Raw) -> _Unknown:
    values = raw.columns.get(column.name)
    if isinstance(values, Names):
        known = set(column.values)
        counts = np.bincount(values.codes[values.codes != NO_CODE], minlength=len(values.names))
        new = [i for i, name in enumerate(values.names) if counts[i] and name not in known]
        example = max(new, key=lambda i: counts[i], default=None)
        name = "" if example is None else values.names[example]
        return _Unknown(int(counts[new].sum()), int(counts.sum()), name)
    if values is None:  # The words of texts are not kept by column.
        return _Unknown(0, 0, "")
    count, example_value = raw.unread.get(column.name, (0, ""))
    return _Unknown(count, int((~np.isnan(values)).sum()) + count, example_value)
