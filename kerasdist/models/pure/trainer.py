"""Keras's trainer: the methods that every model inherits, replaced and put back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras.src.trainers.data_adapters import data_adapter_utils

METHODS = ("fit", "evaluate", "predict", "train_on_batch", "test_on_batch", "predict_on_batch")

# The option by which Keras's `fit` tells the model's `evaluate` that it validates.
IN_FIT = "_use_cached_eval_dataset"


def _trainer() -> type:
    """The class that defines `fit` for every Keras model, of any kind."""
    return next(kind for kind in keras.Model.__mro__ if "fit" in vars(kind))


def methods() -> dict[str, Callable[..., Any]]:
    """The trainer's methods as they are now."""
    trainer = _trainer()
    return {name: vars(trainer)[name] for name in METHODS}


def set_methods(functions: Mapping[str, Callable[..., Any]]) -> None:
    """Replaces methods of the trainer, for models that exist already, too."""
    trainer = _trainer()
    for name, function in functions.items():
        setattr(trainer, name, function)


def check_compiled(model: keras.Model, method: str) -> None:
    """Raises Keras's error if the model is not compiled."""
    model._assert_compile_called(method)


def class_weights(y: Any, class_weight: Mapping[int, float]) -> Any:
    """The sample weights that Keras makes of class weights."""
    return data_adapter_utils.class_weight_to_sample_weights(y, class_weight)
