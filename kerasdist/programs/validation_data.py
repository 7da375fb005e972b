"""The validation data of a model whose own `evaluate` preprocesses it, as a KerasHub task's does.

Keras's `fit` calls the model's `evaluate` for the validation. kerasdist's loop does not, so the
data is preprocessed before.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any

import keras

from kerasdist.models import pure

_caught: ContextVar[list[dict[str, Any]] | None] = ContextVar("_caught", default=None)


def catch(arguments: dict[str, Any]) -> bool:
    """Whether a call of `evaluate` only tells its arguments: its data is preprocessed by then."""
    caught = _caught.get()
    if caught is None:
        return False
    caught.append(arguments)
    return True


def is_preprocessed_by(model: keras.Model, given: dict[str, Any]) -> bool:
    """Whether a `fit` with these arguments validates with the model's own preprocessing."""
    return (
        given["validation_data"] is not None
        and pure.overrides(model, "evaluate")
        and pure.preprocesses(model, "evaluate")
    )


def preprocessed(model: keras.Model, given: dict[str, Any]) -> dict[str, Any]:
    """The arguments of `fit`, with the validation data that the model's `evaluate` makes of it."""
    x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(given["validation_data"])
    caught: list[dict[str, Any]] = []
    token = _caught.set(caught)
    try:
        model.evaluate(
            x=x,
            y=y,
            sample_weight=sample_weight,
            batch_size=given["validation_batch_size"] or given["batch_size"],
            return_dict=True,
            **{pure.IN_FIT: True},
        )
    finally:
        _caught.reset(token)
    (found,) = caught
    parts = (found["x"], found["y"], found["sample_weight"])
    # A dataset comes with its targets, in batches.
    is_whole = parts[1] is None and parts[2] is None
    data = parts[0] if is_whole else parts
    return {**given, "validation_data": data, "validation_batch_size": found["batch_size"]}
