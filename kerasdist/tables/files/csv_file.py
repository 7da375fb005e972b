"""Reads a CSV file row by row, and names the lines that do not fit."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator
from pathlib import Path

from kerasdist.errors import KerasdistError
from kerasdist.tables.files.csv_format import DELIMITERS, UNNAMED, csv_format
from kerasdist.tables.files.csv_rows import Row, long_fields, rows_of
from kerasdist.tables.files.source import ROWS_OF_A_BLOCK, UNKNOWN, Block, Expected


class CsvFile:
    """A CSV file: see `Source`.

    Args:
        path: The file.
        has_header: Whether the first line has the names of the columns; None if it should.
        skip_bad: Leave out rows with too many or too few fields, instead of raising.
        expected: What is known about the table.
    """

    unit = "line"
    indexes: tuple[str, ...] = ()

    def __init__(
        self,
        path: Path,
        *,
        has_header: bool | None = None,
        skip_bad: bool = False,
        expected: Expected = UNKNOWN,
    ):
        self.path, self._skip_bad = path, skip_bad
        self._format = found = csv_format(path, has_header=has_header, expected=expected)
        self.names = found.names
        # Where commas are decimal marks, programs write semicolons. Tabs are used everywhere.
        self.decimal_commas = found.delimiter == ";"
        self.decimal_points = found.delimiter == ","
        self.num_skipped = 0
        self.repeats: list[int] = []
        notes = []
        if found.delimiter != ",":
            notes.append(
                f"{DELIMITERS.get(found.delimiter, repr(found.delimiter))}s between the columns"
            )
        if not found.has_quotes:
            notes.append("quotes are part of the text")
        if found.encoding.name == "cp1252":
            notes.append("not UTF-8: read as Windows-1252 (Latin-1)")
        if found.encoding.bad_line:
            line = found.encoding.bad_line
            notes.append(f"UTF-8 with damaged characters, the first in line {line}")
        self.notes = tuple(notes)

    def __repr__(self) -> str:
        return f"CsvFile({str(self.path)!r}, {self._format}, skip_bad={self._skip_bad})"

    def blocks(self) -> Generator[Block, None, None]:
        """The rows after the header. Blank lines are no rows, and the header again is none."""
        self.num_skipped = 0
        self.repeats = []
        rows: list[list[str]] = []
        places: list[int] = []
        numbers: list[int] = []
        for before, (place, row) in enumerate(self._rows(), 1):
            rows.append(row)
            places.append(place)
            numbers.append(before + self.num_skipped + len(self.repeats))
            if len(rows) == ROWS_OF_A_BLOCK:
                yield _block(rows, places, numbers)
                rows, places, numbers = [], [], []
        if rows:
            yield _block(rows, places, numbers)

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        width, last = len(self.names), self.names[-1]
        with self._opened() as rows:
            for line, row, problem in rows:
                if not problem:
                    if not row or (len(row) == 1 < width and not row[0].strip()):
                        continue
                    if len(row) == width + 1 and not row[-1].strip():
                        row = row[:-1]  # A delimiter at the end of the line.
                    if len(row) == width:
                        if row[-1].strip() == last and self._is_header(row):
                            self.repeats.append(line)
                        else:
                            yield line, row
                        continue
                    fields = "1 field" if len(row) == 1 else f"{len(row)} fields"
                    problem = f"has {fields}, but there are {width} columns"
                else:
                    problem = f"cannot be read ({problem})"
                if not self._skip_bad:
                    raise self._broken(line, problem)
                self.num_skipped += 1

    def _is_header(self, row: list[str]) -> bool:
        """Whether a row repeats the header, as in two files that were joined."""
        names = [name.strip() for name in row]
        names[0] = names[0] or UNNAMED
        return self._format.has_header and len(names) > 1 and tuple(names) == self.names

    @contextlib.contextmanager
    def _opened(self) -> Iterator[Iterator[Row]]:
        """The rows after the header."""
        found = self._format
        encoding = found.encoding.name  # What it cannot decode was told before.
        with (
            open(self.path, encoding=encoding, errors="replace", newline="") as file,
            long_fields(),
        ):
            rows = rows_of(file, found.delimiter, has_quotes=found.has_quotes)
            for _ in range(found.has_delimiter_line + found.has_header):
                _skip_line(rows)
            yield rows

    def _broken(self, line: int, found: str) -> KerasdistError:
        return KerasdistError(
            f"Line {line} of {str(self.path)!r} {found}. Expected a value for each column. Correct "
            "the line (a quote may be missing, or be one too many), or use `--skip-bad` "
            "(`skip_bad=True`) to leave out such lines."
        )


def _skip_line(rows: Iterator[Row]) -> None:
    for row in rows:
        if row.problem or any(field.strip() for field in row.fields):
            return


def _block(rows: list[list[str]], places: list[int], numbers: list[int]) -> Block:
    return Block(tuple(zip(*rows, strict=True)), tuple(places), tuple(numbers))
