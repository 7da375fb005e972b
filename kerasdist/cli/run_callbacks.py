"""The callbacks of a `kerasdist fit`: those of its recipe, and `--patience`."""

from __future__ import annotations

from typing import Any

import keras

from kerasdist.errors import KerasdistError
from kerasdist.models import pure
from kerasdist.recipes.recipe import Recipe
from kerasdist.runs.results.direction import is_higher_better
from kerasdist.training import arguments


def of_recipe(recipe: Recipe | None) -> list[keras.callbacks.Callback]:
    """What the recipe's `build_callbacks(config)` returns, checked; nothing without one."""
    try:
        return arguments.as_callbacks(None if recipe is None else recipe.build_callbacks())
    except KerasdistError as error:
        raise KerasdistError(f"`build_callbacks` of the recipe: {error}") from None


class _Patience(keras.callbacks.EarlyStopping):
    """Knows the direction of its metric once there is a model: from the metric or from its name."""

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        super().on_train_begin(logs)
        known = pure.higher_is_better(self.model)
        self.mode = "max" if is_higher_better(self.monitor, known) else "min"


def early_stopping(
    patience: int | None, monitor: str | None, *, has_validation: bool
) -> keras.callbacks.EarlyStopping | None:
    """Stops after `patience` epochs without a better value of the run's monitor.

    The weights stay those of the last epoch: best.keras has the best ones.
    """
    if patience is None:
        return None
    name = monitor or ("val_loss" if has_validation else "loss")
    return _Patience(name, patience=patience)
