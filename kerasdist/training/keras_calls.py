"""`fit`, `evaluate` and `predict` with Keras's meaning in everything, for programs left unchanged.

`kerasdist.fit` reads a tuple without `y` as `(x, y[, sample_weight])`. Here it is several inputs.
"""

from __future__ import annotations

from typing import Any

import keras

from kerasdist.models import pure
from kerasdist.training import api, arguments
from kerasdist.training.keras_arguments import packing
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
    arguments.check_weights(class_weight, sample_weight)
    data = _data(x, y, sample_weight)
    sizes = validation_batch_size or batch_size
    if validation_split and validation_data is None:
        data, validation_data = packing.split(data, validation_split)
    else:
        validation_data = packing.unpacked_validation(validation_data)
    numbers = isinstance(epochs, int) and isinstance(initial_epoch, int)
    if numbers and epochs <= initial_epoch:  # Keras trains nothing then, but calls the callbacks.
        initial_epoch = epochs = max(epochs, initial_epoch, 1)
    return api.fit(
        model,
        data,
        batch_size=_batch_size(data, batch_size),
        epochs=epochs,
        verbose=verbose,
        callbacks=callbacks,
        validation_data=validation_data,
        shuffle=shuffle if isinstance(shuffle, str) else bool(shuffle),
        class_weight=class_weight,
        initial_epoch=initial_epoch,
        steps_per_epoch=steps_per_epoch or None,
        validation_steps=validation_steps or None,
        validation_batch_size=_batch_size(validation_data, sizes),
        validation_freq=validation_freq,
        **ours,
    )


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
    data = _data(x, y, sample_weight)
    logs = api.evaluate(
        model,
        data,
        batch_size=_batch_size(data, batch_size),
        verbose=_shown(verbose),
        steps=steps or None,
        callbacks=callbacks,
        **ours,
    )
    return logs if return_dict else pure.in_order(model, logs)


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
    data = _data(x, None, None)
    return api.predict(
        model,
        data,
        batch_size=_batch_size(data, batch_size),
        verbose=_shown(verbose),
        steps=steps or None,
        callbacks=callbacks,
        **ours,
    )


def _data(x: Any, y: Any, sample_weight: Any) -> Any:
    """The data as `kerasdist.fit` reads it: a tuple is `(x, y[, sample_weight])`."""
    if y is None and packing.is_rows(x):  # Keras drops the weights then.
        return packing.several_inputs(x)
    return packing.packed(x, y, sample_weight)


def _batch_size(data: Any, batch_size: int | None) -> int | None:
    """Keras reads it for arrays alone, and takes 0 for None."""
    return batch_size or None if packing.is_rows(data) else None


def _shown(verbose: int | str) -> int | str:
    return 1 if verbose == "auto" else verbose
