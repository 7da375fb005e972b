"""Finds files that cannot be used, before a training, and names them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from kerasdist.errors import KerasdistError

# On a network disk, the time is waiting.
_NUM_THREADS = 8
_PER_TASK = 256
_MOST_NAMED = 5
# Files that were found to be good in this process, as they were: a command looks several times.
_good: set[int] = set()


def find_bad(
    folder: Path, names: Iterable[str], problem: Callable[[Path], str | None]
) -> dict[str, str]:
    """What is wrong with each bad file, by its name in the folder.

    Args:
        folder: The folder.
        names: Paths relative to it.
        problem: Looks at one file: returns what is wrong, such as "is empty", or None.
    """
    names = list(names)
    tasks = [names[i : i + _PER_TASK] for i in range(0, len(names), _PER_TASK)]

    def look(task: list[str]) -> dict[str, str]:
        return {name: text for name in task if (text := _problem(folder / name, problem))}

    with ThreadPoolExecutor(_NUM_THREADS, thread_name_prefix="kerasdist-look") as pool:
        return {name: text for found in pool.map(look, tasks) for name, text in found.items()}


def _problem(path: Path, problem: Callable[[Path], str | None]) -> str | None:
    try:
        state = os.stat(path)
    except OSError as error:
        return f"cannot be opened: {error.strerror}"
    known = hash((str(path), state.st_size, state.st_mtime_ns))
    if known in _good:
        return None
    found = problem(path)
    if found is None:
        _good.add(known)
    return found


def refuse(folder: Path, bad: Mapping[str, str], total: int, what: str) -> None:
    """Raises if there are bad files. Names the first few."""
    if bad:
        raise KerasdistError(
            f"{len(bad):,} of {total:,} files in {str(folder)!r} cannot be used: {named(bad)}. "
            f"Expected complete {what}. Repair or remove them, or leave them out with "
            "`--skip-bad` (`skip_bad=True`)."
        )


def named(bad: Mapping[str, str]) -> str:
    """The first few bad files, with what is wrong.

    Example:
        >>> named({"cats/1.png": "is empty"})
        'cats/1.png is empty'
    """
    shown = [f"{name} {text}" for name, text in list(bad.items())[:_MOST_NAMED]]
    more = len(bad) - len(shown)
    return "; ".join(shown) + (f"; and {more:,} more" if more else "")
