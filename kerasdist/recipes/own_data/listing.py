"""Lists the files below a folder, without those that systems leave behind."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from kerasdist.errors import KerasdistError

# What archives of macOS, Windows and Synology leave in every folder.
_LEFT_BEHIND = {"__macosx", "thumbs.db", "desktop.ini", "@eadir"}


def entries(folder: Path) -> list[os.DirEntry[str]]:
    """The visible files and folders in a folder, sorted by name."""
    try:
        with os.scandir(folder) as found:
            shown = [entry for entry in found if is_visible(entry.name)]
    except OSError as error:
        raise KerasdistError(
            f"The folder {str(folder)!r} cannot be read: {error.strerror}. Expected a folder that "
            "you may read. Check its permissions."
        ) from error
    return sorted(shown, key=lambda entry: entry.name)


def is_visible(name: str) -> bool:
    """Whether a file or folder is not hidden, and not left behind by a system."""
    return not name.startswith(".") and name.lower() not in _LEFT_BEHIND


def files_below(folder: Path) -> Iterator[str]:
    """The paths of all visible files below a folder, relative to it, sorted folder by folder.

    Links are followed, but not back to a folder that the path came through.
    """
    yield from _below(folder, "", (os.path.realpath(folder),))


def _below(folder: Path, inside: str, through: tuple[str, ...]) -> Iterator[str]:
    for entry in entries(folder / inside):
        path = f"{inside}/{entry.name}" if inside else entry.name
        if not entry.is_dir():
            yield path
            continue
        real = os.path.realpath(entry.path) if entry.is_symlink() else f"{through[-1]}/{entry.name}"
        # A link may lead back to any folder that the path came through.
        if not any(f"{each}/".startswith(f"{real}/") for each in through):
            yield from _below(folder, path, (*through, real))


def suffix_of(name: str) -> str:
    """The suffix of a file's name in lower case, as `Path.suffix`, which is much slower."""
    return os.path.splitext(name)[1].lower()


def count_suffixes(folder: Path) -> Counter[str]:
    """How many files below a folder have each suffix."""
    return Counter(suffix_of(name) for name in files_below(folder))
