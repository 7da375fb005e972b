"""The model that `fit` receives: a Keras model, or a function that builds one."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable
from typing import TypeAlias

import keras

from kerasdist.errors import KerasdistError
from kerasdist.models import pure

ModelOrBuilder: TypeAlias = keras.Model | Callable[[], keras.Model]


def fresh_seed(model: ModelOrBuilder) -> int:
    """The seed of a `fit` that was given none, from the state of Python's `random`.

    `keras.utils.set_random_seed` sets that state. As in Keras, fitting a model does not advance it,
    so models built afterwards start with the same weights as in Keras. The model's steps so far
    give each further `fit` another seed. A function that builds a model advances the state, because
    building a model does.
    """
    if not pure.is_model(model):
        return random.randrange(2**31)
    optimizer = getattr(model, "optimizer", None)
    steps = pure.num_own_steps(model)
    if steps is None:
        steps = 0 if optimizer is None else int(optimizer.iterations.numpy())
    digest = hashlib.sha256(repr((random.getstate(), steps)).encode()).digest()
    return int.from_bytes(digest[:4], "big") >> 1


def built(model: ModelOrBuilder, precision: str | None, seed: int) -> keras.Model:
    """The model itself, or the one that a function builds, with this seed and precision."""
    if pure.is_model(model):
        return model
    if not callable(model):
        raise KerasdistError(
            f"Received `model` of type {type(model).__name__}. Expected a `keras.Model`, or a "
            "function without arguments that returns one. Build a model, for example with "
            "`keras.Sequential`."
        )
    state = random.getstate()
    try:
        random.seed(seed)  # Keras draws the seeds of initializers from here.
        with pure.dtype_policy(precision):
            made = model()
    finally:
        random.setstate(state)
    if not pure.is_model(made):
        raise KerasdistError(
            f"The function given as `model` returned {type(made).__name__}. Expected a "
            "`keras.Model`. Return the model from the function."
        )
    return made
