"""Cuts lines into fields. A quote that is not closed costs the row where it is, and no other."""

from __future__ import annotations

import contextlib
import csv
import re
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

# A longer field is a quote that is never closed. Python's own limit (131,072) is too short for
# some texts.
LONGEST_FIELD = 1 << 24
# What `csv` says at the end of a file inside quotes.
UNCLOSED = "unexpected end of data"


class Row(NamedTuple):
    """A row of a CSV file.

    Attributes:
        line: The number of its first line.
        fields: Its fields; empty for a blank line, and for a row that cannot be read.
        problem: Why it cannot be read.
    """

    line: int
    fields: list[str]
    problem: str = ""


class _Lines:
    """Lines that can be given back."""

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = iter(lines)
        self.taken: list[str] = []
        self._again: list[str] = []

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self._again.pop() if self._again else next(self._lines)
        self.taken.append(line)
        return line

    def give_back(self) -> None:
        """All lines that were taken, but the first."""
        self._again += self.taken[:0:-1]
        del self.taken[1:]


def rows_of(lines: Iterable[str], delimiter: str, *, has_quotes: bool = True) -> Iterator[Row]:
    """The rows of a file, bad ones, too. After a bad row, reading continues with the next line.

    Args:
        lines: The lines, with their ends.
        delimiter: What separates the fields.
        has_quotes: Whether quotes surround fields; if not, they are part of the text.
    """
    source, line = _Lines(lines), 1
    reader = _reader(source, delimiter, has_quotes=has_quotes)
    while True:
        try:
            row = Row(line, next(reader))
        except StopIteration:
            return
        except csv.Error as error:
            source.give_back()
            fields = _alone(source.taken[0], delimiter)
            row = Row(line, fields or [], "" if fields else str(error))
        yield row
        line += len(source.taken)
        source.taken.clear()


def _reader(
    lines: Iterable[str], delimiter: str, *, blanks: bool = False, has_quotes: bool = True
) -> Any:
    return csv.reader(
        lines,
        delimiter=delimiter,
        quoting=csv.QUOTE_MINIMAL if has_quotes else csv.QUOTE_NONE,
        skipinitialspace=not blanks,  # Some programs write 1, "x".
        strict=True,
    )


def _alone(line: str, delimiter: str) -> list[str] | None:
    """The fields of a line with blanks around quotes, if these are what is wrong with it."""
    tidied = re.sub(rf'" +(?={re.escape(delimiter)}|[\r\n]*$)', '"', line)
    for text, blanks in ((tidied, False), (line, True)):
        try:
            return next(_reader([text], delimiter, blanks=blanks), None)
        except csv.Error:
            pass
    return None


def is_quoted(lines: Iterable[str], delimiter: str) -> bool:
    """Whether quotes surround fields, and not only stand in the text."""
    with long_fields():
        return not any(row.problem for row in rows_of(lines, delimiter))


@contextlib.contextmanager
def long_fields() -> Iterator[None]:
    """Allows fields of `LONGEST_FIELD` characters."""
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)
