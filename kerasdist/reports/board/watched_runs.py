"""The runs in a folder, as they are now. Reads only what changed since the last look."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasdist.reports.board.log_reader import LogReader
from kerasdist.runs.catalog import read_object, runs_below
from kerasdist.runs.file_names import CONFIG, ENVIRONMENT, METRICS, MODEL, REPORT, RESULT
from kerasdist.runs.lock import is_locked
from kerasdist.runs.reading import Run

# A look at the runs is not repeated within this time, however many pages are open.
FRESH_SECONDS = 0.5
# Finding new runs means walking through folders.
_SEARCH_SECONDS = 3.0
# A page waits at most about this long for logs that are not read yet.
_READING_SECONDS = 0.25
_PORTION = 4 << 20

_Stamp = tuple[int, int, int] | None


@dataclass(frozen=True)
class Watched:
    """A run as it is now.

    Attributes:
        name: The name that pages show: its path in the board's folder.
        run: What the files say; of the log only the last and the best lines.
        log: The curves.
        updated: When the run last wrote, in seconds since 1970.
        has_report: Whether there is a report to open.
    """

    name: str
    run: Run
    log: LogReader
    updated: float
    has_report: bool


class WatchedRuns:
    """Keeps an eye on the runs in a folder.

    Args:
        folder: The folder. It may be empty, and need not exist yet.
        clock: Returns seconds; tests replace it.

    Attributes:
        guard: A lock for whoever looks and shows what was found.
        num_pending: Bytes of logs that are not read yet.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic):
        self.folder = folder
        self._clock = clock
        # Held while a page is made, too: another thread must not read on meanwhile.
        self.guard = threading.RLock()
        self.num_pending = 0
        self._paths: list[Path] = []
        self._searched = self._looked = -float("inf")
        self._logs: dict[Path, LogReader] = {}
        self._objects: dict[Path, tuple[_Stamp, dict[str, Any]]] = {}
        self._found: dict[str, Watched] = {}

    def look(self) -> dict[str, Watched]:
        """The runs by name."""
        with self.guard:
            now = self._clock()
            if now - self._searched >= _SEARCH_SECONDS:
                self._paths, self._searched = list(runs_below(self.folder)), now
            if self.num_pending or now - self._looked >= FRESH_SECONDS:
                self._read_logs(now + _READING_SECONDS)
                found = [self._watched(path) for path in self._paths]
                self._found = {each.name: each for each in found if each is not None}
                self._forget()
                self.num_pending = sum(log.num_pending for log in self._logs.values())
                self._looked = now
            return self._found

    def _read_logs(self, deadline: float) -> None:
        """Reads what was appended; the short rests first, so that most runs are complete soon."""
        for path in self._paths:
            log = self._logs.get(path)
            if log is None:
                log = self._logs[path] = LogReader(path)
                size = _stamp(path / METRICS)
                log.num_pending = size[1] if size else 0
        by_rest = sorted(self._paths, key=lambda path: self._logs[path].num_pending)
        for path in by_rest:
            log = self._logs[path]
            while log.read(_PORTION) and log.num_pending and self._clock() < deadline:
                pass
            if self._clock() >= deadline:
                return

    def _watched(self, path: Path) -> Watched | None:
        config = self._object(path / CONFIG)
        if "kerasdist" not in config:  # The folder was deleted since the last search.
            return None
        log, result = self._logs[path], self._object(path / RESULT)
        status = "running" if is_locked(path) else str(result.get("status", "unfinished"))
        run = Run(
            path=path,
            config=config,
            environment=self._object(path / ENVIRONMENT),
            # A run that continues still has the result of its last end.
            result=_of_data(result) if status == "running" else result,
            # Only runs of Python need it: the name of the model's class.
            model={} if {"recipe", "model"} & config.keys() else self._object(path / MODEL),
            evaluation={},
            steps=log.steps,
            epochs=log.epochs,
            status=status,
        )
        stamps = [_stamp(path / name) for name in (METRICS, RESULT, ENVIRONMENT)]
        updated = max((stamp[0] / 1e9 for stamp in stamps if stamp), default=0.0)
        return Watched(self._name(path), run, log, updated, _is_file(path / REPORT))

    def _name(self, path: Path) -> str:
        name = os.path.relpath(path, self.folder)
        return path.resolve().name if name == "." else name

    def _object(self, path: Path) -> dict[str, Any]:
        """The content of a JSON file, read again only if the file changed."""
        stamp = _stamp(path)
        known = self._objects.get(path)
        if known is None or known[0] != stamp:
            known = self._objects[path] = (stamp, read_object(path) if stamp else {})
        return known[1]

    def _forget(self) -> None:
        """Drops what is known of runs that are gone."""
        there = {each.run.path for each in self._found.values()}
        self._logs = {path: log for path, log in self._logs.items() if path in there}
        self._objects = {p: known for p, known in self._objects.items() if p.parent in there}


def _of_data(result: dict[str, Any]) -> dict[str, Any]:
    """What is true of a run whether it has ended or not."""
    return {"dataset": result["dataset"]} if "dataset" in result else {}


def _stamp(path: Path) -> _Stamp:
    """What changes when a file does; None if it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def _is_file(path: Path) -> bool:
    """Whether there is a file that is not a link: a link could lead anywhere."""
    return path.is_file() and not path.is_symlink()
