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
    digest = hashlib.sha256(str(folder).encode()).hexdigest()[:8]
    package = f"kerasdist_recipe_{folder.name}_{digest}"
    if package not in sys.modules:
        spec = importlib.machinery.ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules[package] = importlib.util.module_from_spec(spec)
    return importlib.import_module(f"{package}.{name}")
