"""Opens a table by the suffix of its file."""

from __future__ import annotations

import os
from pathlib import Path

from kerasdist.errors import KerasdistError
from kerasdist.tables.files.csv_file import CsvFile
from kerasdist.tables.files.parquet_file import ParquetFile
from kerasdist.tables.files.source import UNKNOWN, Expected, Source

CSV_SUFFIXES = (".csv", ".tsv")
PARQUET_SUFFIXES = (".parquet",)
SUFFIXES = (*CSV_SUFFIXES, *PARQUET_SUFFIXES)


def open_table(
    path: str | os.PathLike[str],
    *,
    has_header: bool | None = None,
    skip_bad: bool = False,
    expected: Expected = UNKNOWN,
) -> Source:
    """Opens a CSV or Parquet file. Only its start is read.

    Args:
        path: The file.
        has_header: Whether the first line of a CSV file has the names of the columns; None if it
            should have, but may be a row by mistake.
        skip_bad: Whether to leave out lines with too many or too few values.
        expected: What is known about the table.
    """
    file = Path(path).expanduser()
    suffix = file.suffix.lower()
    if suffix not in SUFFIXES:
        raise KerasdistError(
            f"Received the table {str(path)!r}. Expected a file that ends in "
            f"{', '.join(SUFFIXES)}. Save the table as CSV, or rename the file."
        )
    if not file.is_file():
        found = "is a folder" if file.is_dir() else "does not exist"
        raise KerasdistError(
            f"The table {str(path)!r} {found}. Expected a file. Check the path; if the file was "
            "moved, name its new place with `--data-dir` (`data_dir`)."
        )
    try:
        if suffix in PARQUET_SUFFIXES:
            return ParquetFile(file)
        return CsvFile(file, has_header=has_header, skip_bad=skip_bad, expected=expected)
    except OSError as error:
        raise KerasdistError(
            f"The table {str(path)!r} cannot be read: {error.strerror}. Expected a file that you "
            "may read. Check its permissions."
        ) from error
