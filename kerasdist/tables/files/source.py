"""What a table is before its columns are understood: names, and blocks of rows as strings."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kerasdist.errors import KerasdistError

ROWS_OF_A_BLOCK = 4096


@dataclass(frozen=True)
class Block:
    """Some rows of a table, column by column.

    Attributes:
        columns: The values of each column as they are in the file; "" where there is none.
        places: For each row the number of its line, or of its row, for messages.
        numbers: For each row its number in the file, counted from 1; rows that are left out
            count, too.
    """

    columns: tuple[tuple[str, ...], ...]
    places: tuple[int, ...]
    numbers: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.places)


@dataclass(frozen=True)
class Expected:
    """What is known about a table before its file is opened.

    Attributes:
        names: Columns that somebody named, or that a model reads.
        is_learnt: Whether a model learnt from a table like it: then one column may be enough.
        target: The column that may be missing then.
        width: How many columns the training's file had, if they had no names; else 0.
    """

    names: frozenset[str] = frozenset()
    is_learnt: bool = False
    target: str = ""
    width: int = 0


UNKNOWN = Expected()


class Source(Protocol):
    """A table that can be read again and again, block by block: memory holds one block.

    Attributes:
        path: The file or folder.
        names: The names of the columns.
        unit: What a place is: "line" or "row".
        notes: What was found out about the file and is worth saying.
        indexes: The columns that are an index of pandas, which numbers or names the rows.
    """

    path: Path
    names: tuple[str, ...]
    unit: str
    notes: tuple[str, ...]
    indexes: tuple[str, ...]
    decimal_commas: bool
    """Whether a lone comma in a number likely is a decimal comma, and no thousands separator."""
    decimal_points: bool
    """Whether a lone point likely is a decimal point."""

    repeats: list[int]
    """The places of the rows that the last pass left out because they repeat the header."""

    def blocks(self) -> Generator[Block, None, None]: ...

    @property
    def num_skipped(self) -> int:
        """How many bad rows the last pass left out."""
        ...


def unreadable(path: Path, found: str, expected: str, fix: str) -> KerasdistError:
    """The error for a file that is not the table it should be."""
    return KerasdistError(f"The file {str(path)!r} {found}. Expected {expected}. {fix}.")
