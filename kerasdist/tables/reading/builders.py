"""Collects the values of a column, block by block, with their type: mostly four bytes per value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kerasdist.tables.schema import Column
from kerasdist.tables.values import (
    BLANKS,
    LARGEST_EXACT,
    Style,
    category,
    days,
    is_missing,
    numbers,
)
from kerasdist.tables.words import split_words

# Of a longer text, only the first words are kept.
MOST_WORDS = 512
NO_CODE = -1


@dataclass(frozen=True)
class Names:
    """Strings as codes: `names[code]`, or `NO_CODE` where the value is missing."""

    codes: np.ndarray
    names: tuple[str, ...]

    def take(self, rows: np.ndarray) -> Names:
        return Names(self.codes[rows], self.names)


@dataclass(frozen=True)
class Words:
    """The words of each row as codes, all in one array: those of row i end at `ends[i]`."""

    codes: np.ndarray
    ends: np.ndarray
    words: tuple[str, ...]

    @property
    def lengths(self) -> np.ndarray:
        """How many words each row has."""
        return np.diff(self.ends, prepend=0)

    def take(self, rows: np.ndarray) -> Words:
        lengths = self.lengths
        return Words(self.codes[np.repeat(rows, lengths)], np.cumsum(lengths[rows]), self.words)


class Builder(Protocol):
    def add(self, values: Sequence[str]) -> None: ...

    def finished(self) -> Any: ...


class Numbers:
    """Numbers in float32, or in float64 if float32 cannot tell large ones apart.

    It is NaN where there is none.

    Attributes:
        num_unread: How many values are there, but are not numbers.
        unread: The first of them.
    """

    def __init__(self, convert: Callable[[Sequence[str]], list[float]]):
        self._convert, self._parts = convert, [np.empty(0, np.float32)]
        self.num_unread, self.unread = 0, ""

    def add(self, values: Sequence[str]) -> None:
        with np.errstate(over="ignore"):  # What float32 cannot hold is infinite, and so missing.
            exact = np.array(self._convert(values), np.float64)
            found = exact.astype(np.float32)
        found[~np.isfinite(found)] = np.nan
        is_rounded = (np.abs(exact) > LARGEST_EXACT) & (exact != found) & ~np.isnan(found)
        # Smaller ones are rounded beside large ones, too: a value means the same in each file.
        self._parts.append(np.where(is_rounded, exact, found) if is_rounded.any() else found)
        odd = [i for i in np.flatnonzero(~np.isfinite(found)).tolist() if not is_missing(values[i])]
        self.num_unread += len(odd)
        self.unread = self.unread or (values[odd[0]].strip(BLANKS) if odd else "")

    def finished(self) -> np.ndarray:
        return np.concatenate(self._parts)


class Strings:
    def __init__(self, *, is_boolean: bool = False) -> None:
        self._is_boolean = is_boolean
        self._known: dict[str, int] = {}
        self._written: dict[str, int] = {}
        self._parts = [np.empty(0, np.int32)]

    def add(self, values: Sequence[str]) -> None:
        written = self._written
        for value in dict.fromkeys(values):  # In their order: the same codes in each process.
            if value not in written:
                written[value] = self._code(value)
        codes = [written[value] for value in values]
        self._parts.append(np.array(codes, np.int32))

    def _code(self, value: str) -> int:
        if is_missing(value):
            return NO_CODE
        name = category(value, is_boolean=self._is_boolean)
        return self._known.setdefault(name, len(self._known))

    def finished(self) -> Names:
        return Names(np.concatenate(self._parts), tuple(self._known))


class Texts:
    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._codes, self._lengths = [np.empty(0, np.int32)], [np.empty(0, np.int64)]

    def add(self, values: Sequence[str]) -> None:
        known = self._known
        words, lengths = split_words(values, MOST_WORDS)
        codes = [known.setdefault(word, len(known)) for word in words]
        self._codes.append(np.array(codes, np.int32))
        self._lengths.append(lengths)

    def finished(self) -> Words:
        ends = np.cumsum(np.concatenate(self._lengths))
        return Words(np.concatenate(self._codes), ends, tuple(self._known))


def builder_of(column: Column, style: Style) -> Builder:
    """What collects a column's values, except of texts.

    Args:
        column: The column.
        style: How its numbers are written in this file.
    """
    if column.kind == "date":
        return Numbers(lambda values: [days(value) for value in values])
    if column.is_read_as_number:
        return Numbers(lambda values: numbers(values, style))
    return Strings(is_boolean=column.kind == "boolean")


def words_in(blocks: Iterable[Sequence[str]]) -> Words:
    """The words of texts that come in blocks."""
    texts = Texts()
    for block in blocks:
        texts.add(block)
    return texts.finished()
