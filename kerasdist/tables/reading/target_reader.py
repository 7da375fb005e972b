"""Reads the target's values: numbers, or the numbers of classes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import numpy as np

from kerasdist.errors import KerasdistError
from kerasdist.tables.files.source import Source
from kerasdist.tables.kinds import listed
from kerasdist.tables.reading.builders import Numbers
from kerasdist.tables.schema import Target
from kerasdist.tables.values import BLANKS, BOOLEANS, Style, is_missing, number, numbers


class TargetReader:
    """Reads the target of rows that come in blocks.

    Args:
        target: What is predicted.
        style: How its numbers are written in this file.
        source: The table, for messages.

    Attributes:
        left_out: How many rows have no target, by what is written there.
    """

    def __init__(self, target: Target, style: Style, source: Source) -> None:
        self._target, self._style, self._source = target, style, source
        self._classes = _Classes(target, style)
        self.left_out: Counter[str] = Counter()

    def read(self, values: Sequence[str], places: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """`(the targets that there are, which rows have one)`.

        Args:
            values: The target of each row, as in the file.
            places: The place of each row, for messages.
        """
        if self._target.task == "regression":
            builder = Numbers(lambda texts: numbers(texts, self._style))
            builder.add(values)
            found = builder.finished()
            keep = ~np.isnan(found)
            found = found[keep]
        else:
            ids = [self._id(*pair) for pair in zip(values, places, strict=True)]
            keep = np.array([i is not None for i in ids], bool)
            found = np.array([i for i in ids if i is not None], np.int64)
        self.left_out.update(values[i].strip(BLANKS)[:40] for i in np.flatnonzero(~keep).tolist())
        return found, keep

    def _id(self, value: str, place: int) -> int | None:
        found = self._classes.number_of(value)
        if found is None and not is_missing(value):
            source, target = self._source, self._target
            raise KerasdistError(
                f"The target {target.name!r} is {value.strip(BLANKS)!r} in {source.unit} {place} "
                f"of {str(source.path)!r}. Expected one of {listed(target.classes)}. Correct the "
                "value."
            )
        return found


class _Classes:
    """The numbers of classes by what is written in a file: 1.0 is the class 1."""

    def __init__(self, target: Target, style: Style) -> None:
        self._style = style
        self._known = {name: i for i, name in enumerate(target.classes)}
        found = {number(name, target.style): i for name, i in self._known.items()}
        self._by_number = {value: i for value, i in found.items() if not math.isnan(value)}
        folded = {name.lower(): i for name, i in self._known.items()}
        self._booleans = folded if set(folded) in BOOLEANS else {}

    def number_of(self, value: str) -> int | None:
        name = value.strip(BLANKS)
        if name in self._known:
            return self._known[name]
        found = self._booleans.get(name.lower(), self._by_number.get(number(name, self._style)))
        if found is not None:
            self._known[name] = found  # Found faster the next time.
        return found
