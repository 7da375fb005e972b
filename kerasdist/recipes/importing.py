"""Imports files that belong together: a recipe's, or a model's and its provider's."""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType


def import_part(folder: Path, name: str) -> ModuleType:
    """Imports `name`.py of a folder as part of a package: it may import the files beside it.

    The package's name has the folder's in it: two recipes may both have a data.py.
    """
    package = _package(folder)
    if package not in sys.modules:
        spec = importlib.machinery.ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules[package] = importlib.util.module_from_spec(spec)
        _seen[package] = _state(folder)
    return importlib.import_module(f"{package}.{name}")


def forget_if_edited(folder: Path) -> None:
    """Lets a folder's files be imported anew if one has changed: a notebook goes on for days."""
    package = _package(folder)
    if package in sys.modules and _seen.get(package) != _state(folder):
        for name in [m for m in sys.modules if m == package or m.startswith(f"{package}.")]:
            del sys.modules[name]
        importlib.invalidate_caches()


# How the files of a package were when it was imported.
_seen: dict[str, list[tuple[str, int, int]]] = {}


def _package(folder: Path) -> str:
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    return f"kerasdist_recipe_{folder.name}_{digest}"


def _state(folder: Path) -> list[tuple[str, int, int]]:
    files = [(path.name, path.stat()) for path in sorted(folder.glob("*.py"))]
    return [(name, status.st_mtime_ns, status.st_size) for name, status in files]
