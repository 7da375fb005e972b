"""Reads the columns of a table into memory, with their types: four bytes per value or word."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from kerasdist.errors import KerasdistError, closest
from kerasdist.tables.files.source import Block, Source
from kerasdist.tables.kinds import listed
from kerasdist.tables.schema import Column, Target
from kerasdist.tables.values import BLANKS, days, is_missing, numbers
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


@dataclass(frozen=True)
class Raw:
    """The columns of a table as they are in the file, with their types.

    Attributes:
        rows: How many rows there are.
        columns: float32 for numbers (and dates, in days), `Names` for others; not the texts.
        words: The words of all text columns together.
        target: Class numbers (int64) or numbers (float32); None if nobody asked.
        without_target: How many rows were left out, because they have no target.
        skipped: How many bad lines were left out.
    """

    rows: int
    columns: dict[str, Any]
    words: Words | None
    target: np.ndarray | None
    without_target: int = 0
    skipped: int = 0

    def take(self, rows: np.ndarray) -> Raw:
        """Some rows, chosen by a mask."""
        return Raw(
            int(rows.sum()),
            {
                name: values.take(rows) if isinstance(values, Names) else values[rows]
                for name, values in self.columns.items()
            },
            None if self.words is None else self.words.take(rows),
            None if self.target is None else self.target[rows],
        )


class _Builder(Protocol):
    def add(self, values: Sequence[str]) -> None: ...

    def finished(self) -> Any: ...


class _Numbers:
    def __init__(self, convert: Callable[[Sequence[str]], list[float]]):
        self._convert, self._parts = convert, [np.empty(0, np.float32)]

    def add(self, values: Sequence[str]) -> None:
        with np.errstate(over="ignore"):  # What float32 cannot hold is infinite, and so missing.
            found = np.array(self._convert(values)).astype(np.float32)
        self._parts.append(np.where(np.isfinite(found), found, np.float32(np.nan)))

    def finished(self) -> np.ndarray:
        return np.concatenate(self._parts)


class _Names:
    def __init__(self) -> None:
        self._known: dict[str, int] = {}
        self._parts = [np.empty(0, np.int32)]

    def add(self, values: Sequence[str]) -> None:
        known = self._known
        codes = [
            NO_CODE if is_missing(value) else known.setdefault(value.strip(BLANKS), len(known))
            for value in values
        ]
        self._parts.append(np.array(codes, np.int32))

    def finished(self) -> Names:
        return Names(np.concatenate(self._parts), tuple(self._known))


class _Texts:
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


def words_in(blocks: Iterable[Sequence[str]]) -> Words:
    """The words of texts that come in blocks."""
    texts = _Texts()
    for block in blocks:
        texts.add(block)
    return texts.finished()


# What was read last, and what it was: a command that trains needs the same rows several times.
_last: tuple[Any, Raw] | None = None


def read_again(source: Source, columns: Sequence[Column], target: Target) -> Raw:
    """As `read`, but a file that did not change since the last call is not read again."""
    global _last
    status = os.stat(source.path)
    key = (
        *(str(source.path), source.names, status.st_mtime_ns, status.st_size, repr(source)),
        *(target.name, target.task, target.style, target.classes),
        *((column.name, column.kind, column.style) for column in columns),
    )
    if _last is None or _last[0] != key:
        _last = None
        _last = (key, read(source, columns, target))
    return _last[1]


def read(
    source: Source,
    columns: Sequence[Column],
    target: Target | None,
) -> Raw:
    """Reads the columns that a model needs, and the target unless it is None.

    Args:
        source: The table. Its columns may have another order, and there may be more of them.
        columns: The columns to read.
        target: What to predict. Rows without it are left out.
    """
    places = _places(source, [column.name for column in columns])
    aim = None if target is None else _places(source, [target.name])[target.name]
    builders = {c.name: _builder(c) for c in columns if c.kind != "text"}
    texts = [places[c.name] for c in columns if c.kind == "text"]
    words = _Texts() if texts else None
    found_targets: list[np.ndarray] = []
    rows = left_out = 0
    for block in source.blocks():
        if target is not None and aim is not None:
            values, keep = _targets(block.columns[aim], target, source, block)
            found_targets.append(values)
            left_out += len(block) - len(values)
            block = _kept(block, keep)
        rows += len(block)
        for name, builder in builders.items():
            builder.add(block.columns[places[name]])
        if words is not None:
            words.add([" ".join(row) for row in zip(*(block.columns[i] for i in texts))])  # noqa: B905
    return Raw(
        rows,
        {name: builder.finished() for name, builder in builders.items()},
        None if words is None else words.finished(),
        np.concatenate(found_targets) if found_targets else None,
        left_out,
        source.num_skipped,
    )


def rows_at(
    source: Source, target: Target, wanted: Sequence[int]
) -> dict[int, tuple[int, tuple[str, ...]]]:
    """The place of some rows and their values as they are in the file, by their number in `Raw`.

    Args:
        source: The table.
        target: What is predicted: rows without it have no number.
        wanted: The numbers.
    """
    aim = _places(source, [target.name])[target.name]
    found, first = {}, 0
    with contextlib.closing(source.blocks()) as blocks:
        while first <= max(wanted, default=-1):
            block = next(blocks)
            block = _kept(block, _targets(block.columns[aim], target, source, block)[1])
            for number in wanted:
                i = number - first
                if 0 <= i < len(block):
                    found[number] = (block.places[i], tuple(c[i] for c in block.columns))
            first += len(block)
    return found


def _places(source: Source, wanted: Sequence[str]) -> dict[str, int]:
    known = {name: i for i, name in enumerate(source.names)}
    missing = [name for name in wanted if name not in known]
    if missing:
        raise KerasdistError(
            f"The table {str(source.path)!r} has no column {missing[0]!r}"
            f"{f' and {len(missing) - 1} more' if len(missing) > 1 else ''}, which the model "
            f"reads. Expected the columns {listed(wanted)}, in any order."
            f"{closest(missing[0], known)} Add the column."
        )
    return {name: known[name] for name in wanted}


def _builder(column: Column) -> _Builder:
    if column.kind == "date":
        return _Numbers(lambda values: [days(value) for value in values])
    if column.is_read_as_number:
        return _Numbers(lambda values: numbers(values, column.style))
    return _Names()


def _targets(
    values: Sequence[str], target: Target, source: Source, block: Block
) -> tuple[np.ndarray, np.ndarray]:
    """`(the targets that there are, which rows have one)`."""
    if target.task == "regression":
        builder = _Numbers(lambda texts: numbers(texts, target.style))
        builder.add(values)
        found = builder.finished()
        keep = ~np.isnan(found)
        return found[keep], keep
    ids = {name: i for i, name in enumerate(target.classes)}
    keep = np.array([not is_missing(value) for value in values], bool)
    labels = []
    for value, place in zip(values, block.places, strict=True):
        if is_missing(value):
            continue
        name = class_of(value, ids)
        if name is None:
            raise KerasdistError(
                f"The target {target.name!r} is {value.strip(BLANKS)!r} in {source.unit} {place} "
                f"of {str(source.path)!r}. Expected one of {listed(target.classes)}. Correct the "
                "value."
            )
        labels.append(ids[name])
    return np.array(labels, np.int64), keep


def class_of(value: str, classes: dict[str, int]) -> str | None:
    """The class that a value of the target means: 1.0 is the class 1.

    Example:
        >>> class_of(" 1.0", {"0": 0, "1": 1}), class_of("maybe", {"no": 0, "yes": 1})
        ('1', None)
    """
    name = value.strip(BLANKS)
    if name in classes:
        return name
    try:
        name = str(int(float(name)))
    except (ValueError, OverflowError):
        return None
    return name if name in classes else None


def _kept(block: Block, keep: np.ndarray) -> Block:
    if keep.all():
        return block
    chosen = np.flatnonzero(keep).tolist()
    columns = tuple(tuple(column[i] for i in chosen) for column in block.columns)
    return Block(columns, tuple(block.places[i] for i in chosen))
