"""Imports the Python files of a folder, so that they can import one another."""

from __future__ import annotations

import hashlib
import importlib
import importlib.machinery
import importlib.util
import sys
import traceback
from pathlib import Path
from types import ModuleType

_KERASDIST = Path(__file__).resolve().parents[1]


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


def where_raised(error: BaseException) -> str:
    """The file and line of a recipe in which an error arose, or "": "model.py, line 12"."""
    folders = [Path(p) for name in _seen for p in getattr(sys.modules.get(name), "__path__", ())]
    # A syntax error says its line itself.
    frames = [] if isinstance(error, SyntaxError) else traceback.extract_tb(error.__traceback__)
    for frame in reversed(frames):
        file = Path(frame.filename)
        # Installed packages may be in a folder of the recipe.
        if file.is_relative_to(_KERASDIST) or "-packages" in frame.filename:
            continue
        for folder in folders:
            if file.is_relative_to(folder):
                return f"{file.relative_to(folder)}, line {frame.lineno}"
    return ""


# The files of each package when it was imported: name, time of change, size.
_seen: dict[str, list[tuple[str, int, int]]] = {}


def _package(folder: Path) -> str:
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    return f"kerasdist_recipe_{folder.name}_{digest}"


def _state(folder: Path) -> list[tuple[str, int, int]]:
    files = [(path.name, path.stat()) for path in sorted(folder.glob("*.py"))]
    return [(name, status.st_mtime_ns, status.st_size) for name, status in files]
