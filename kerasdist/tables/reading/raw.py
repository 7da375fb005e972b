"""Reads the columns of a table into memory, with their types: mostly four bytes per value."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kerasdist.errors import KerasdistError, closest
from kerasdist.tables.files.source import Block, Source
from kerasdist.tables.kinds import listed
from kerasdist.tables.reading.builders import Names, Numbers, Texts, Words, builder_of
from kerasdist.tables.reading.styles import StyleCount, own_styles
from kerasdist.tables.reading.target_reader import TargetReader
from kerasdist.tables.schema import Column, Target
from kerasdist.tables.values import Style


@dataclass(frozen=True)
class Raw:
    """The columns of a table as they are in the file, with their types.

    Attributes:
        rows: How many rows there are.
        columns: float32 or float64 for numbers (and dates, in days), `Names` for others; not the
            texts.
        words: The words of all text columns together.
        target: Class numbers (int64) or numbers; None if nobody asked.
        without_target: How many rows were left out, because they have no target, by what is
            written there.
        skipped: How many bad lines were left out.
        repeats: The lines that were left out because they repeat the header.
        styles: How the file writes the numbers of each column.
        unread: For columns of numbers, how many values are there but are not numbers, and the
            first of them.
    """

    rows: int
    columns: dict[str, Any]
    words: Words | None
    target: np.ndarray | None
    without_target: Mapping[str, int] = field(default_factory=dict)
    skipped: int = 0
    repeats: Sequence[int] = ()
    styles: Mapping[str, Style] = field(default_factory=dict)
    unread: Mapping[str, tuple[int, str]] = field(default_factory=dict)

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


# What was read last, and what it was: a command that trains needs the same rows several times.
_last: tuple[Any, Raw] | None = None


def read_again(
    source: Source, columns: Sequence[Column], target: Target, *, commas: bool | None = None
) -> Raw:
    """As `read`, but a file that did not change since the last call is not read again."""
    global _last
    status = os.stat(source.path)
    key = (
        *(str(source.path), source.names, status.st_mtime_ns, status.st_size, repr(source)),
        *(target.name, target.task, target.style, target.classes, target.is_style_guessed),
        *((column.name, column.kind, column.style, column.is_style_guessed) for column in columns),
        commas,
    )
    if _last is None or _last[0] != key:
        _last = None
        _last = (key, read(source, columns, target, commas=commas))
    return _last[1]


def read(
    source: Source,
    columns: Sequence[Column],
    target: Target | None,
    *,
    commas: bool | None = None,
) -> Raw:
    """Reads the columns that a model needs, and the target unless it is None.

    How numbers are written belongs to the file, not to the model: if this file writes them in
    another way than the training's, it is read in its own way.

    Args:
        source: The table. Its columns may have another order, and there may be more of them.
        columns: The columns to read.
        target: What to predict. Rows without it are left out.
        commas: Whether a lone comma was a decimal comma in the training's file; None if it is
            this file.
    """
    styles = {c.name: c.style for c in columns if c.is_read_as_number}
    if target is not None:
        styles[target.name] = target.style
    raw, counts = _read(source, columns, target, styles)
    is_like_it = commas in (None, source.decimal_commas)
    learnt: list[Column | Target] = [*columns, *([] if target is None else [target])]
    own = own_styles(
        styles,
        counts,
        commas=source.decimal_commas,
        is_like_it=is_like_it,
        guessed=[column.name for column in learnt if column.is_style_guessed],
    )
    return raw if own == styles else _read(source, columns, target, own)[0]


def _read(
    source: Source,
    columns: Sequence[Column],
    target: Target | None,
    styles: Mapping[str, Style],
) -> tuple[Raw, dict[str, StyleCount]]:
    """The columns, and which styles the numbers in the file have."""
    aims = [] if target is None else [target.name]
    places = _places(source, [column.name for column in columns])
    for aim in aims:
        places[aim] = _target_place(source, aim)
    builders = {
        c.name: builder_of(c, styles.get(c.name, c.style)) for c in columns if c.kind != "text"
    }
    texts = [places[c.name] for c in columns if c.kind == "text"]
    words = Texts() if texts else None
    counts = {name: StyleCount() for name in styles}
    found_targets: list[np.ndarray] = []
    reader = None if target is None else TargetReader(target, styles[target.name], source)
    rows = 0
    for block in source.blocks():
        for name, count in counts.items():
            count.add(block.columns[places[name]])
        if target is not None and reader is not None:
            values, keep = reader.read(block.columns[places[target.name]], block.places)
            found_targets.append(values)
            block = _kept(block, keep)
        rows += len(block)
        for name, builder in builders.items():
            builder.add(block.columns[places[name]])
        if words is not None:
            words.add([" ".join(row) for row in zip(*(block.columns[i] for i in texts))])  # noqa: B905
    raw = Raw(
        rows,
        {name: builder.finished() for name, builder in builders.items()},
        None if words is None else words.finished(),
        np.concatenate(found_targets) if found_targets else None,
        {} if reader is None else dict(reader.left_out),
        source.num_skipped,
        source.repeats,
        styles,
        {n: (b.num_unread, b.unread) for n, b in builders.items() if isinstance(b, Numbers)},
    )
    return raw, counts


def rows_at(
    source: Source, target: Target, style: Style, wanted: Sequence[int]
) -> dict[int, tuple[int, tuple[str, ...]]]:
    """The place of some rows and their values as they are in the file, by their number in `Raw`.

    Args:
        source: The table.
        target: What is predicted: rows without it have no number.
        style: How the file writes the target's numbers.
        wanted: The numbers.
    """
    aim = _places(source, [target.name])[target.name]
    reader = TargetReader(target, style, source)
    found, first = {}, 0
    with contextlib.closing(source.blocks()) as blocks:
        while first <= max(wanted, default=-1):
            block = next(blocks)
            block = _kept(block, reader.read(block.columns[aim], block.places)[1])
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
        column, it = ("column", "it") if len(missing) == 1 else ("columns", "them")
        raise KerasdistError(
            f"The table {str(source.path)!r} has no {column} {listed(missing, 5)}, which the model "
            f"reads. Expected the columns {listed(wanted)}, in any order."
            f"{closest(missing[0], known)} Add {it}."
        )
    return {name: known[name] for name in wanted}


def _target_place(source: Source, name: str) -> int:
    if name not in source.names:
        raise KerasdistError(
            f"The table {str(source.path)!r} has no column {name!r}, which the model predicts. "
            f"Expected it, with the right answers.{closest(name, source.names)} Add the column, or "
            "use `kerasdist predict`, which needs no answers."
        )
    return source.names.index(name)


def _kept(block: Block, keep: np.ndarray) -> Block:
    if keep.all():
        return block
    chosen = np.flatnonzero(keep).tolist()
    columns = tuple(tuple(column[i] for i in chosen) for column in block.columns)
    places = tuple(block.places[i] for i in chosen)
    return Block(columns, places, tuple(block.numbers[i] for i in chosen))
