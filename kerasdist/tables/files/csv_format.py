"""Finds out how a CSV file is written: its encoding, its delimiter and its header."""

from __future__ import annotations

import codecs
import dataclasses
import io
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kerasdist.errors import KerasdistError
from kerasdist.tables.files.csv_rows import UNCLOSED, is_quoted, long_fields, rows_of
from kerasdist.tables.files.encoding import Encoding, encoding_of
from kerasdist.tables.files.source import UNKNOWN, Expected, unreadable
from kerasdist.tables.values import is_missing, styles_of

DELIMITERS = {",": "comma", ";": "semicolon", "\t": "tab", "|": "bar"}
# The index that pandas writes.
UNNAMED = "unnamed"
_SAMPLE_BYTES = 1 << 18
_SAMPLE_ROWS = 100
_NUMBER = re.compile(r"\s*[-+]?(\d+([.,]\d*)?|[.,]\d+)([eE][-+]?\d+)?\s*")
# Excel reads this line, and writes none.
_DELIMITER_LINE = re.compile(r"\s*sep=([^\s\w\"]|\t)[\s,;]*(\r\n|\r|\n)", re.IGNORECASE)
# Of numbers like 1100.0, 1102.5, 1105.0 the steps may differ by this part.
_SAME_STEPS = 1e-3
_FEWEST_STEPS = 4


@dataclass(frozen=True)
class CsvFormat:
    """How a CSV file is written.

    Attributes:
        encoding: How its characters are written.
        delimiter: What separates the fields.
        names: The names of the columns.
        has_header: Whether the first line holds these names.
        has_delimiter_line: Whether a line like `sep=;` is before it.
        has_quotes: Whether quotes surround fields, and are no part of the text.
    """

    encoding: Encoding
    delimiter: str
    names: tuple[str, ...]
    has_header: bool
    has_delimiter_line: bool = False
    has_quotes: bool = True


def csv_format(
    path: Path, *, has_header: bool | None = None, expected: Expected = UNKNOWN
) -> CsvFormat:
    """Looks at the start of a file. Refuses what is not a table, and says why.

    Args:
        path: The file.
        has_header: Whether the first line has the names of the columns. If None, it should, but a
            line of values is refused.
        expected: What is known about the table.
    """
    found = _encoding(path)
    encoding = found.name
    text = _start(path, encoding)
    told = _DELIMITER_LINE.match(text)
    text = text[told.end() :] if told else text
    if not text.strip():
        raise unreadable(path, "is empty", "a table", "Check how it was written")
    delimiter, rows = _delimited(path, text, told[1] if told else None, expected)
    has_quotes = _has_quotes(path, encoding, delimiter)
    if has_header is False:
        names = _numbered(path, max(len(row) for row in rows), expected)
        return CsvFormat(found, delimiter, names, False, told is not None, has_quotes)
    header, data = rows[0], rows[1:]
    if data and all(len(row) == len(header) + 1 for row in data) and data[0][-1].strip():
        header = ["", *header]  # As R writes row names: they have no name themselves.
    names = _names(path, header)
    if has_header is None and not expected.names & set(names) and _is_data(names, data):
        shown = ", ".join(repr(name) for name in names[:4])
        raise KerasdistError(
            f"The first line of {str(path)!r} holds values ({shown}), not names. Expected the "
            "name of each column there. Add such a line, or use `--no-header` "
            "(`header=False`): the columns are then called column_1, column_2 and so on. If these "
            "are names, use `--header` (`header=True`)."
        )
    return CsvFormat(found, delimiter, names, True, told is not None, has_quotes)


def _numbered(path: Path, width: int, expected: Expected) -> tuple[str, ...]:
    """The names of columns that have none: they are known by their places alone."""
    if expected.width in (0, width):
        return tuple(f"column_{i + 1}" for i in range(width))
    names = [f"column_{i + 1}" for i in range(expected.width)]
    if width == expected.width - 1 and expected.target in names:
        names.remove(expected.target)
        return tuple(names)
    raise unreadable(
        path,
        f"has {width} columns without names",
        f"{expected.width}, as in the training's file, or {expected.width - 1} without the target "
        f"{expected.target!r}: such columns are known by their places",
        "Write the same columns in the same order",
    )


def _encoding(path: Path) -> Encoding:
    """UTF-16 if the file says so, else what all of it fits best."""
    with open(path, "rb") as file:
        start = file.read(1 << 16)
        if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return Encoding("utf-16")
        if b"\0" in start:
            raise unreadable(
                path,
                "is not text: it has bytes of value 0",
                "a text file with one row per line",
                "Save the table as CSV (or Parquet), and use that file",
            )
        blocks = itertools.chain([start], iter(lambda: file.read(1 << 20), b""))
        found = encoding_of(blocks, is_whole=True)
        is_marked = found.name == "utf-8" and start.startswith(codecs.BOM_UTF8)
        return dataclasses.replace(found, name="utf-8-sig") if is_marked else found


def _start(path: Path, encoding: str) -> str:
    """The first lines. Ends at the end of a line, if the file goes on."""
    with open(path, encoding=encoding, errors="replace", newline="") as file:
        text = file.read(_SAMPLE_BYTES)
        return text + (file.readline() if len(text) == _SAMPLE_BYTES else "")


def _delimited(
    path: Path, text: str, told: str | None, expected: Expected
) -> tuple[str, list[list[str]]]:
    """The delimiter and the first rows. The best one cuts most rows into the header's fields."""
    best, best_rank, best_rows = "", (0.0, 0), [[""]]
    for delimiter in DELIMITERS if told is None else (told,):
        rows = _rows(text, delimiter)
        # A delimiter at the end of each line makes an empty last field.
        counts = Counter(len(row) for row in rows)
        width, _ = counts.most_common(1)[0]
        agreeing = sum(len(row) == width for row in rows) / len(rows)
        if width > 1 and len(rows[0]) > 1 and (agreeing, width) > best_rank:
            best, best_rank, best_rows = delimiter, (agreeing, width), rows
        if _is_the_only_column(rows[0], expected) and (agreeing, width) > best_rank and width == 1:
            best, best_rank, best_rows = delimiter, (agreeing, width), rows
    if not best:
        first = text.lstrip("\r\n").splitlines()[0][:60]
        or_one = ", or only one that the model reads" if expected.is_learnt else ""
        raise unreadable(
            path,
            f"has one column only: its first line is {first!r}",
            f"columns between {', '.join(DELIMITERS.values())}s{or_one}",
            "Check how it was written, and save it with one of these delimiters",
        )
    return best, best_rows


def _is_the_only_column(header: list[str], expected: Expected) -> bool:
    """Whether a model may need no other column than this one."""
    if not expected.is_learnt or len(header) != 1:
        return False
    return expected.width in (1, 2) or header[0].strip() in expected.names


def _rows(text: str, delimiter: str) -> list[list[str]]:
    rows = []
    with long_fields():
        for row in rows_of(io.StringIO(text, newline=""), delimiter):
            if row.problem == UNCLOSED:
                break  # Perhaps it goes on after the sample.
            if any(field.strip() for field in row.fields):
                rows.append(row.fields)
            if len(rows) >= _SAMPLE_ROWS:
                break
    return rows or [[""]]


def _has_quotes(path: Path, encoding: str, delimiter: str) -> bool:
    """Whether quotes surround fields. Many programs write none in files with tabs."""
    if delimiter != "\t":
        return True
    with open(path, encoding=encoding, errors="replace", newline="") as file:
        return is_quoted(file, delimiter)


def _names(path: Path, header: Sequence[str]) -> tuple[str, ...]:
    names = [name.strip() for name in header]
    if len(names) > 1 and not names[-1]:
        names = names[:-1]  # A delimiter at the end of the line.
    empty = [i + 1 for i, name in enumerate(names) if not name]
    if empty and empty != [1]:
        raise unreadable(
            path,
            f"has no name for column {empty[-1]} in its first line",
            "a name for each column",
            "Write one there",
        )
    names = [name or UNNAMED for name in names]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise unreadable(
            path,
            f"has {names.count(twice[0])} columns with the name {twice[0]!r}",
            "a different name for each column",
            "Rename one of them, or use `--no-header` (`header=False`) if these are values",
        )
    return tuple(names)


def _is_data(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a first line looks like values: it has numbers, and they are not like 2019, 2020."""
    numbers = [name for name in names if _NUMBER.fullmatch(name)]
    if _is_counting(numbers) or (_is_in_order(numbers) and _names_numbers(names, rows)):
        return False
    whole = [int(name) for name in numbers if re.fullmatch(r"\d+", name)]
    steps = {second - first for first, second in itertools.pairwise(whole)}
    if len(whole) < len(numbers) or min(steps, default=1) < 1:
        return True
    return 2 * len(numbers) >= len(names)


def _is_counting(numbers: Sequence[str]) -> bool:
    """Whether numbers go up in equal steps: two whole ones, or many like 1100.0, 1102.5."""
    try:
        found = [float(number) for number in numbers]
    except ValueError:
        return False
    steps = [second - first for first, second in itertools.pairwise(found)]
    is_whole = all(re.fullmatch(r"\d+", number) for number in numbers)
    if len(steps) < (1 if is_whole else _FEWEST_STEPS) or min(steps) <= 0:
        return False
    return max(steps) - min(steps) <= _SAME_STEPS * max(steps)


def _is_in_order(numbers: Sequence[str]) -> bool:
    """Whether numbers go up, or (three or more) down, as years and wavelengths do."""
    found = [float(number.replace(",", ".")) for number in numbers]
    steps = [second - first for first, second in itertools.pairwise(found)]
    return min(steps, default=1) > 0 or (len(steps) > 1 and max(steps) < 0)


def _names_numbers(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Whether a text is above a column of numbers: then it names it, and others are names, too."""
    rows = [row for row in rows if len(row) == len(names)]
    for i, name in enumerate(names):
        values = [row[i] for row in rows if not is_missing(row[i])]
        is_text = not styles_of(name) and not is_missing(name)
        if is_text and len(values) > 1 and all(map(styles_of, values)):
            return True
    return False
