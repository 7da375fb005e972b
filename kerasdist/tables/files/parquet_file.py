"""Reads a Parquet file batch by batch with pyarrow, an extra."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from pathlib import Path
from typing import Any

from kerasdist.errors import KerasdistError
from kerasdist.tables.files.source import ROWS_OF_A_BLOCK, Block, unreadable

# The name of an index that has none.
_INDEX = re.compile(r"__index_level_\d+__")


class ParquetFile:
    """A Parquet file: see `Source`. Values become text, as in a CSV file.

    Args:
        path: The file.
    """

    unit = "row"
    decimal_commas = False
    decimal_points = True
    num_skipped = 0

    def __init__(self, path: Path):
        self.path, self.repeats = path, list[int]()
        with self._opened() as file:
            schema = file.schema_arrow
        self.names = tuple(schema.names)
        self.indexes = _indexes(self.names, schema.metadata or {})
        self.notes: tuple[str, ...] = ()
        twice = [name for name in self.names if self.names.count(name) > 1]
        if twice:
            raise unreadable(
                path,
                f"has {self.names.count(twice[0])} columns with the name {twice[0]!r}",
                "a different name for each column",
                "Rename one of them",
            )

    def __repr__(self) -> str:
        return f"ParquetFile({str(self.path)!r})"

    def blocks(self) -> Generator[Block, None, None]:
        """The rows. A column of lists or structures is refused by name."""
        import pyarrow as pa

        first = 1
        with self._opened() as file:
            for batch in file.iter_batches(batch_size=ROWS_OF_A_BLOCK):
                columns = []
                for name, column in zip(self.names, batch.columns, strict=True):
                    try:
                        texts = column.cast(pa.string()).to_pylist()
                    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
                        raise unreadable(
                            self.path,
                            f"has the column {name!r} of the type {column.type}",
                            "numbers, strings, booleans or dates",
                            "Remove the column, or turn it into one of these",
                        ) from None
                    columns.append(tuple("" if text is None else text for text in texts))
                numbers = tuple(range(first, first + len(batch)))
                yield Block(tuple(columns), numbers, numbers)
                first += len(batch)

    def _opened(self) -> Any:
        try:
            import pyarrow as pa
            import pyarrow.parquet
        except ImportError:
            raise KerasdistError(
                f"The file {str(self.path)!r} needs the package pyarrow, which is not installed. "
                "Expected the extra 'parquet'. Install it with `pip install 'kerasdist[parquet]'`, "
                "or save the table as CSV."
            ) from None
        try:
            return pyarrow.parquet.ParquetFile(self.path)
        except (pa.ArrowInvalid, OSError) as error:
            reason = str(error).splitlines()[0]
            raise unreadable(
                self.path,
                f"cannot be read as Parquet: {reason.rstrip('.')}",
                "a Parquet file",
                "Write it again",
            ) from None


def _indexes(names: tuple[str, ...], metadata: Mapping[bytes, bytes]) -> tuple[str, ...]:
    """The columns that pandas wrote as the index of its rows."""
    try:
        told = json.loads(metadata[b"pandas"])["index_columns"]
    except (KeyError, TypeError, ValueError):
        told = []
    return tuple(name for name in names if name in told or _INDEX.fullmatch(name))
