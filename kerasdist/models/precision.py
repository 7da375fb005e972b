"""Checks of `precision`: Keras must know the dtype policy, and a built model must have it."""

from __future__ import annotations

import keras

from kerasdist.errors import KerasdistError
from kerasdist.models import pure


def check_policy(precision: str | None) -> None:
    """Refuses a precision that Keras has no dtype policy for."""
    if precision is None:
        return
    try:
        keras.dtype_policies.get(precision)
    except (ValueError, TypeError):
        raise KerasdistError(
            f"Received `precision={precision!r}`. Expected a dtype policy of Keras. Give for "
            "example `precision='mixed_bfloat16'`, or leave it out."
        ) from None


def check_precision(model: keras.Model, precision: str | None) -> None:
    """Refuses a model that was built with another policy: layers keep the policy they have."""
    if precision is None:
        return
    inputs = keras.layers.InputLayer
    layers = [v for v in pure.all_layers(model) if v is not model and not isinstance(v, inputs)]
    # `Hashing` and others compute with integers under every policy.
    layers = [v for v in layers if keras.backend.is_float_dtype(v.compute_dtype)] or [model]
    own = [layer.dtype_policy.name for layer in layers]
    # The last layers of a mixed model are often float32 on purpose.
    other = [i for i, name in enumerate(own) if name != precision]
    if precision in own:
        other = [i for i in other if own[i] != "float32"]
    if other:
        raise KerasdistError(
            f"Received `precision={precision!r}` for a model whose layer {layers[other[0]].name!r} "
            f"was made with the policy {own[other[0]]!r}. Expected the same for both. Pass `fit` a "
            "function that builds the model, or build it after "
            f"`keras.config.set_dtype_policy({precision!r})`."
        )
