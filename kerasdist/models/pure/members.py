"""The metrics and optimizers of a model, wherever it holds them."""

from __future__ import annotations

import itertools
import types
from collections.abc import Mapping
from typing import Any

import keras

_NO_OPTIMIZERS = frozenset({bool, int, float, str, type(None), types.FunctionType})


def metrics_of(model: keras.Model) -> list[keras.metrics.Metric]:
    """All metrics that a step may update: the model's list, and what Keras tracks itself."""
    tracked = keras.Model.metrics.fget(model)  # A class may have a list of its own.
    compiled = model._compile_metrics.metrics if model._compile_metrics is not None else ()
    tracker = (model._loss_tracker,) if getattr(model, "_loss_tracker", None) is not None else ()
    found = {id(m): m for m in (*tracker, *model.metrics, *tracked, *compiled)}
    return list(found.values())


def optimizers_of(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """The optimizers that are attributes of a model or its layers, also in lists and dicts."""
    found: dict[int, keras.optimizers.Optimizer] = {}
    for layer in model._flatten_layers():
        # Without most of the values, and before the slower questions: fits ask this several times.
        several = [value for value in vars(layer).values() if type(value) not in _NO_OPTIMIZERS]
        for item in itertools.chain.from_iterable(map(_items, several)):
            if isinstance(item, keras.optimizers.Optimizer):
                found[id(item)] = item
    return list(found.values())


def main_optimizer(model: keras.Model) -> keras.optimizers.Optimizer | None:
    """The optimizer whose learning rate is shown: the model's, or the first one that is used."""
    found = [model.optimizer] if getattr(model, "optimizer", None) is not None else []
    found += optimizers_of(model)
    return next((o for o in found if o.built), found[0] if found else None)


def _items(value: Any) -> list[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple)) else [value]
