"""Patches Keras for the probe: random draws repeat one row, and no row depends on the others."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend as keras_backend
from keras.src.backend.tensorflow import nn as keras_nn

# Functions of `keras.random` that draw values of a given shape.
_OF_SHAPE = ("normal", "uniform", "randint", "truncated_normal", "gamma", "binomial", "beta")


# Seed for draws that differ between rows, to learn which results depend on them.
_OTHER_SEED = 90210

# One of the functions of `keras.random`, or a replacement of it.
_Draw = Callable[..., tf.Tensor]


@dataclass
class Draws:
    """How often was drawn, which draws have a row per example, and whether those are alike."""

    are_alike: bool = True
    num_draws: int = 0
    of_rows: set[int] = field(default_factory=set)


@contextlib.contextmanager
def repeated_rows(
    num_rows: int, of_rows: Collection[int] | None = None, *, other_chance: bool = False
) -> Iterator[Draws]:
    """A draw with one row per example repeats one row. BatchNorm takes no batch statistics,
    and statistics over all replicas are fixed.

    A layer's weights may have the same number of rows. So `of_rows` gives the positions of the
    draws that are for examples, in the order of drawing. With `other_chance`, draws that cannot be
    made alike get other seeds. Only for code that runs eagerly, and in a single thread.
    """
    draws = Draws()
    random = keras_backend.random
    replaced: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Callable[..., Any]) -> None:
        replaced.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    try:
        for name in _OF_SHAPE:
            function = getattr(random, name)
            differing = _noticed(function, draws, other_chance)
            replace(random, name, _one_row(function, differing, num_rows, of_rows, draws))
        replace(random, "dropout", _one_mask(random.dropout))
        for name in ("categorical", "shuffle"):
            function = _noticed(getattr(random, name), draws, other_chance)
            replace(random, name, _counted(function, draws))
        kind = keras.layers.BatchNormalization
        replace(kind, "call", _without_training(kind.call))
        replace(keras_nn, "_compute_moments_sync", _fixed_moments)
        yield draws
    finally:
        while replaced:
            setattr(*replaced.pop())


def _one_row(
    function: _Draw,
    differing: _Draw,
    num_rows: int,
    of_rows: Collection[int] | None,
    draws: Draws,
) -> _Draw:
    @functools.wraps(function)
    def draw(shape: Any, *args: Any, **kwargs: Any) -> tf.Tensor:
        place = draws.num_draws
        draws.num_draws += 1
        sizes = [int(size) for size in shape]
        # A step may also draw for several copies of the batch at once.
        is_of_rows = bool(sizes) and sizes[0] > 0 and sizes[0] % num_rows == 0
        if not is_of_rows or (of_rows is not None and place not in of_rows):
            return function(shape, *args, **kwargs)
        draws.of_rows.add(place)
        if any(len(keras.ops.shape(value)) for value in _tensors(args, kwargs)):
            return differing(shape, *args, **kwargs)  # Each row has its own parameters.
        row = function([1, *sizes[1:]], *args, **kwargs)
        return tf.repeat(row, sizes[0], axis=0)

    return draw


def _counted(function: _Draw, draws: Draws) -> _Draw:
    @functools.wraps(function)
    def draw(*args: Any, **kwargs: Any) -> tf.Tensor:
        draws.num_draws += 1
        return function(*args, **kwargs)

    return draw


def _tensors(args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[tf.Tensor]:
    given = [value for name, value in kwargs.items() if name not in ("seed", "dtype")]
    return [value for value in (*args, *given) if tf.is_tensor(value)]


def _one_mask(function: _Draw) -> _Draw:
    @functools.wraps(function)
    def dropout(
        inputs: tf.Tensor, rate: float, noise_shape: Any = None, seed: Any = None
    ) -> tf.Tensor:
        shape = [None] * len(inputs.shape) if noise_shape is None else list(noise_shape)
        return function(inputs, rate, noise_shape=[1, *shape[1:]], seed=seed)

    return dropout


def _noticed(function: _Draw, draws: Draws, other_chance: bool) -> _Draw:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def draw(*args: Any, **kwargs: Any) -> tf.Tensor:
        draws.are_alike = False
        # Called with other seeds, too: it advances the generator that later draws use.
        value = function(*args, **kwargs)
        if not other_chance:
            return value
        given = signature.bind(*args, **kwargs)
        given.arguments["seed"] = _OTHER_SEED + draws.num_draws
        return function(*given.args, **given.kwargs)

    return draw


def _fixed_moments(x: tf.Tensor, axes: Any, keepdims: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """In place of statistics over all replicas, which do not depend on the shard."""
    zeros = tf.zeros_like(tf.reduce_sum(x, axes, keepdims=keepdims))
    return zeros, tf.ones_like(zeros)


def _without_training(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(
        self: keras.layers.Layer, inputs: tf.Tensor, training: Any = None, mask: Any = None
    ) -> tf.Tensor:
        return function(self, inputs, training=False, mask=mask)

    return call
