"""Imports the Python files of a folder, so that they can import one another."""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_part(folder: Path, name: str) -> ModuleType:
    """Imports `name`.py of a folder as part of a package, so it can import the other files.

    The package is named after the folder's path: two recipes may both have a data.py.
    """
    package = _package(folder)
    if package not in sys.modules:
        spec = importlib.machinery.ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules[package] = importlib.util.module_from_spec(spec)
        _seen[package] = _state(folder)
    return importlib.import_module(f"{package}.{name}")


def forget_if_edited(folder: Path) -> None:
    """Makes the next import read a folder's files again if one has changed, as in a notebook."""
    package = _package(folder)
    if package in sys.modules and _seen.get(package) != _state(folder):
        for name in [m for m in sys.modules if m == package or m.startswith(f"{package}.")]:
            del sys.modules[name]
        importlib.invalidate_caches()


# The files of each package when it was imported: name, time of change, size.
_seen: dict[str, list[tuple[str, int, int]]] = {}


def _package(folder: Path) -> str:
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    return f"kerasdist_recipe_{folder.name}_{digest}"


def _state(folder: Path) -> list[tuple[str, int, int]]:
    files = [(path.name, path.stat()) for path in sorted(folder.glob("*.py"))]
    return [(name, status.st_mtime_ns, status.st_size) for name, status in files]
