"""The files that `predict` cannot read: named in an error, or left out with `--skip-bad`."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from kerasdist.errors import KerasdistError

T = TypeVar("T")
OPTION = "--skip-bad"


class SkippedFiles:
    """Reads files. Those that cannot be read are refused, or left out and remembered."""

    def __init__(self, paths: Sequence[Path], *, skip_bad: bool):
        self._paths, self._skip_bad = paths, skip_bad
        self._bad: dict[Path, KerasdistError] = {}

    @property
    def good(self) -> list[Path]:
        """The files that could be read, or were not tried yet. Raises if there is none."""
        found = [path for path in self._paths if path not in self._bad]
        if found:
            return found
        raise KerasdistError(
            f"None of the files can be read ({len(self._bad):,}). The first: "
            f"{next(iter(self._bad.values()))}"
        )

    def read(self, read: Callable[[list[Path]], T], paths: Sequence[Path]) -> T | None:
        """What `read` makes of some files, without the bad ones; None if nothing is left."""
        wanted = [path for path in paths if path not in self._bad]
        if not wanted:
            return None
        try:
            return read(wanted)
        except KerasdistError as error:
            if not self._skip_bad:
                if len(self._paths) < 2 or OPTION in str(error):
                    raise
                hint = f"`{OPTION}` leaves out such files and answers the others."
                raise KerasdistError(f"{error} {hint}") from error
        for path in wanted:
            with self._remembered(path):
                read([path])
        return read(good) if (good := [path for path in wanted if path not in self._bad]) else None

    def tell(self) -> None:
        """Names the files that were left out, on stderr."""
        for path, error in self._bad.items():
            why = str(error).split(". Expected")[0].removeprefix(f"The file {str(path)!r} ")
            print(f"kerasdist: skipped {str(path)!r}: {why}", file=sys.stderr, flush=True)

    @contextlib.contextmanager
    def _remembered(self, path: Path) -> Iterator[None]:
        try:
            yield
        except KerasdistError as error:
            self._bad[path] = error
