"""`fit`, `evaluate` and `predict` with Keras's meaning in everything, for programs left unchanged.

`kerasdist.fit` reads a tuple without `y` as `(x, y[, sample_weight])`. Here it is several inputs.
"""

from __future__ import annotations

from typing import Any

import keras

from kerasdist.training import api
from kerasdist.training.options import CallbackLike, DataLike


def fit(
    model: keras.Model,
    *,
    x: DataLike = None,
    y: Any = None,
    batch_size: int | None = None,
    epochs: int = 1,
    verbose: int | str = "auto",
    callbacks: CallbackLike | None = None,
    validation_split: float = 0.0,
    validation_data: DataLike | None = None,
    shuffle: bool | int | str = True,
    class_weight: dict[int, float] | None = None,
    sample_weight: Any = None,
    initial_epoch: int = 0,
    steps_per_epoch: int | None = None,
    validation_steps: int | None = None,
    validation_batch_size: int | None = None,
    validation_freq: int | list[int] = 1,
    **ours: Any,
) -> keras.callbacks.History:
    """What `model.fit(...)` does, on kerasdist's devices. `ours` are kerasdist's own options."""
    raise NotImplementedError


def evaluate(
    model: keras.Model,
    *,
    x: DataLike = None,
    y: Any = None,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    sample_weight: Any = None,
    steps: int | None = None,
    callbacks: CallbackLike | None = None,
    return_dict: bool = False,
    **ours: Any,
) -> Any:
    """What `model.evaluate(...)` returns: a scalar, a flat list, or with `return_dict` a dict."""
    raise NotImplementedError


def predict(
    model: keras.Model,
    *,
    x: DataLike,
    batch_size: int | None = None,
    verbose: int | str = "auto",
    steps: int | None = None,
    callbacks: CallbackLike | None = None,
    **ours: Any,
) -> Any:
    """What `model.predict(...)` returns."""
    raise NotImplementedError
