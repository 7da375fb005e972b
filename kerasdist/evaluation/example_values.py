"""The values of examples as texts, for those that a report cannot draw: rows and texts."""

from __future__ import annotations

from typing import Any

from kerasdist.recipes import extras
from kerasdist.recipes.recipe import Recipe


def add_to(evaluation: dict[str, Any], recipe: Recipe | None) -> None:
    """Adds "values" to the worst and best examples, if the recipe can describe them."""
    found = [example for kind in ("worst", "best") for example in evaluation[kind]]
    positions = [example["position"] for example in found]
    described = extras.describe_examples(recipe, "validation", positions)
    for example, values in zip(found, described, strict=False):
        example["values"] = values
