"""The values of examples as texts, for people who look for them: rows, texts and files' names."""

from __future__ import annotations

from typing import Any

from kerasdist.data.folders.file_source import FileSource
from kerasdist.recipes import extras
from kerasdist.recipes.recipe import Recipe


def add_to(evaluation: dict[str, Any], recipe: Recipe | None, data: Any = None) -> None:
    """Adds "values" to the worst and best examples, if the recipe or the data can describe them.

    Without words of the recipe, an example of a folder of images or sounds has its file's name.
    """
    found = [example for kind in ("worst", "best") for example in evaluation[kind]]
    positions = [example["position"] for example in found]
    described = extras.describe_examples(recipe, "validation", positions)
    if not described and isinstance(data, FileSource):
        described = [{"file": data.name_of(position)} for position in positions]
    for example, values in zip(found, described, strict=False):
        example["values"] = values
