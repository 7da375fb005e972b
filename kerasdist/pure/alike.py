"""Keras while two parts of a batch are compared with the whole: nothing differs between rows by
chance, and no row depends on the others by design."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend as keras_backend

# Functions of `keras.random` whose draws are of a given shape.
_OF_SHAPE = ("normal", "uniform", "randint", "truncated_normal", "gamma", "binomial", "beta")


@dataclass
class Draws:
    """Whether all that was drawn is the same for every row."""

    are_alike: bool = True


@contextlib.contextmanager
def rows_alike(num_rows: int) -> Iterator[Draws]:
    """A draw for `num_rows` rows repeats one row; batch statistics are not taken.

    Only for code that runs eagerly. Not for several threads.
    """
    draws = Draws()
    random = keras_backend.random
    replaced: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Callable) -> None:
        replaced.append((owner, name, vars(owner)[name]))
        setattr(owner, name, value)

    try:
        for name in _OF_SHAPE:
            replace(random, name, _one_row(getattr(random, name), num_rows, draws))
        replace(random, "dropout", _one_mask(random.dropout))
        for name in ("categorical", "shuffle"):
            replace(random, name, _noticed(getattr(random, name), draws))
        kind = keras.layers.BatchNormalization
        replace(kind, "call", _without_training(kind.call))
        yield draws
    finally:
        while replaced:
            setattr(*replaced.pop())


def _one_row(function: Callable, num_rows: int, draws: Draws) -> Callable:
    @functools.wraps(function)
    def draw(shape, *args, **kwargs):
        sizes = [int(size) for size in shape]
        if not sizes or sizes[0] != num_rows:
            return function(shape, *args, **kwargs)
        if any(len(keras.ops.shape(value)) for value in _tensors(args, kwargs)):
            draws.are_alike = False  # Its parameters are for each row.
            return function(shape, *args, **kwargs)
        row = function([1, *sizes[1:]], *args, **kwargs)
        return tf.repeat(row, num_rows, axis=0)

    return draw


def _tensors(args: tuple, kwargs: dict[str, Any]) -> list[Any]:
    given = [value for name, value in kwargs.items() if name not in ("seed", "dtype")]
    return [value for value in (*args, *given) if tf.is_tensor(value)]


def _one_mask(function: Callable) -> Callable:
    @functools.wraps(function)
    def dropout(inputs, rate, noise_shape=None, seed=None):
        shape = [None] * len(inputs.shape) if noise_shape is None else list(noise_shape)
        return function(inputs, rate, noise_shape=[1, *shape[1:]], seed=seed)

    return dropout


def _noticed(function: Callable, draws: Draws) -> Callable:
    @functools.wraps(function)
    def draw(*args, **kwargs):
        draws.are_alike = False
        return function(*args, **kwargs)

    return draw


def _without_training(function: Callable) -> Callable:
    @functools.wraps(function)
    def call(self, inputs, training=None, mask=None):
        return function(self, inputs, training=False, mask=mask)

    return call
