"""Checks the folder of a recipe's data before TensorFlow is imported."""

from __future__ import annotations

import ast
import dataclasses
import sys
from pathlib import Path

from kerasdist.errors import KerasdistError
from kerasdist.recipes.recipe import LEARNT, Recipe

# What may be imported quickly, beside the standard library.
_QUICK = {"kerasdist", "numpy"}


def check(recipe: Recipe) -> None:
    """Refuses a `data_dir` that is not there, or that holds other data, if the recipe can tell.

    The recipe can tell with `find_source` in its data.py. It is asked if data.py imports nothing
    that could import TensorFlow.
    """
    if any(field.metadata.get(LEARNT) for field in dataclasses.fields(recipe.config)):
        return  # It looks at its data itself, and a trained run of it needs none.
    folder = getattr(recipe.config, "data_dir", None)
    if not isinstance(folder, str) or "://" in folder:
        return
    if not Path(folder).expanduser().exists():
        raise KerasdistError(
            f"Received `data_dir` {folder!r}, which does not exist. Expected the folder of the "
            f"data of {recipe.name!r}. Check the name, or leave out `data_dir`."
        )
    if _is_quick(recipe.path / "data.py", set()):
        recipe.source()


def _is_quick(path: Path, seen: set[Path]) -> bool:
    """Whether a file of the recipe imports only what is quick. Imports in functions come later."""
    if path in seen:
        return True
    seen.add(path)
    try:
        body = ast.parse(path.read_text()).body
    except (OSError, SyntaxError, ValueError):
        return False
    for node in body:
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            names = [node.module or ""]
        elif isinstance(node, ast.ImportFrom):
            others = [node.module] if node.module else [alias.name for alias in node.names]
            if not all(_is_quick(path.with_name(f"{name}.py"), seen) for name in others):
                return False
        elif isinstance(node, (ast.If, ast.Try, ast.With)):
            return False  # It may import something on a condition.
        for name in names:
            package = name.partition(".")[0]
            if package not in _QUICK and package not in sys.stdlib_module_names:
                return False
    return True
