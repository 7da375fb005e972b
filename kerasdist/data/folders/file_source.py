"""The files of a split as a random-access source: decoded by several threads, batch by batch."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from kerasdist.errors import KerasdistError
from kerasdist.recipes.own_data.class_folders import Files


class BadFileError(Exception):
    """A file cannot be decoded. The message says why: "is cut short"."""


class FileSource:
    """`(decoded file, class number)` by index: `kerasdist.fit` takes it with a `batch_size`.

    Nothing is kept: a file is read when its batch is. With `skip_bad`, a file that cannot be
    decoded is named once, and the next file of its class is used in its place.

    Attributes:
        folder: The folder that the names are relative to.
        names: The path of each file.
        labels: The class number of each file.
    """

    def __init__(
        self, folder: Path, files: Files, decode: Callable[[Path], Any], *, skip_bad: bool = False
    ):
        self.folder, self.names, self.labels = folder, files.names, np.array(files.labels)
        self._decode, self._skip_bad = decode, skip_bad
        # The files that are used in the place of others, by index.
        self._instead: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[Any, np.int64]:
        if not -len(self) <= index < len(self):
            raise IndexError(index)  # Ends a `for` loop.
        return self._read(index % len(self)), self.labels[index]

    def name_of(self, index: int) -> str:
        """The path of the file that was read for an index: its own, or the one in its place."""
        return self.names[self._instead.get(index, index)]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Any, np.int64]]:
        num_threads = min(len(indices), _num_cores())
        if num_threads < 2:
            return [self[index] for index in indices]
        with ThreadPoolExecutor(num_threads, thread_name_prefix="kerasdist-decode") as pool:
            return list(pool.map(self.__getitem__, indices))

    def _read(self, index: int) -> Any:
        tried = index
        while True:
            path = self.folder / self.names[tried]
            try:
                return self._decode(path)
            except BadFileError as error:
                if not self._skip_bad:
                    raise KerasdistError(
                        f"The file {str(path)!r} {error}. Expected a complete file. Repair or "
                        "remove it, or leave such files out with `--skip-bad` (`skip_bad=True`)."
                    ) from error
                tried = self._next(tried, index)
                self._replace(index, str(error), tried)

    def _next(self, tried: int, index: int) -> int:
        """The next file of the same class. Which one, depends on the files alone."""
        same = np.flatnonzero(self.labels == self.labels[index])
        following = int(same[(np.searchsorted(same, tried) + 1) % len(same)])
        if following == index:
            raise KerasdistError(
                f"No file of the class of {self.names[index]!r} in {str(self.folder)!r} can be "
                "decoded. Expected at least one. Replace the files."
            )
        return following

    def _replace(self, index: int, problem: str, instead: int) -> None:
        is_told = index in self._instead
        self._instead[index] = instead
        if not is_told:
            print(
                f"kerasdist: {self.names[index]} {problem}: another file of its class is used in "
                "its place",
                file=sys.stderr,
            )


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
