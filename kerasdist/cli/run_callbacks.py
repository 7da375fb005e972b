"""The callbacks of a `kerasdist fit`: those of its recipe, and `--patience`."""

from __future__ import annotations

import keras

from kerasdist.errors import KerasdistError
from kerasdist.recipes.recipe import Recipe
from kerasdist.runs.metrics_log import is_higher_better
from kerasdist.training import arguments


def of_recipe(recipe: Recipe | None) -> list[keras.callbacks.Callback]:
    """What the recipe's `build_callbacks(config)` returns, checked; nothing without one."""
    try:
        return arguments.as_callbacks(None if recipe is None else recipe.build_callbacks())
    except KerasdistError as error:
        raise KerasdistError(f"`build_callbacks` of the recipe: {error}") from None


def early_stopping(
    patience: int | None, monitor: str | None, *, has_validation: bool
) -> keras.callbacks.EarlyStopping | None:
    """Stops after `patience` epochs without a better value of the run's monitor.

    The weights stay those of the last epoch: best.keras has the best ones.
    """
    if patience is None:
        return None
    name = monitor or ("val_loss" if has_validation else "loss")
    mode = "max" if is_higher_better(name) else "min"
    return keras.callbacks.EarlyStopping(name, patience=patience, mode=mode)
