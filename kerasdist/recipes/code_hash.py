"""A hash of the Python files of a recipe: it tells whether they were edited since a run."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from kerasdist.recipes.places import reference_to


def of_recipe(folder: Path) -> str | None:
    """The hash of a recipe's files; None of a recipe that is part of kerasdist.

    Tests are left out: they do not change what is trained. So are folders inside of folders, which
    may hold data.
    """
    if reference_to(folder) != str(folder):
        return None
    return of_files([*folder.glob("*.py"), *folder.glob("*/*.py")], folder)


def of_files(paths: Iterable[Path], folder: Path) -> str | None:
    """The hash of the names and contents of files in a folder; None if one cannot be read."""
    digest = hashlib.sha256()
    try:
        for path in sorted({*paths}):
            if not path.name.startswith("test_"):
                content = hashlib.sha256(path.read_bytes()).hexdigest()
                digest.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    except OSError:
        return None
    return digest.hexdigest()
