"""Keras while two parts of a batch are compared with the whole: nothing differs between rows by
chance, and no row depends on the others by design."""

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

# Functions of `keras.random` whose draws are of a given shape.
_OF_SHAPE = ("normal", "uniform", "randint", "truncated_normal", "gamma", "binomial", "beta")


# For draws that differ between rows, to learn what depends on them.
_OTHER_SEED = 90210


@dataclass
class Draws:
    """What was drawn: how often, which draws were for each row, and whether those are alike."""

    are_alike: bool = True
    num_draws: int = 0
    of_rows: set[int] = field(default_factory=set)


@contextlib.contextmanager
def rows_alike(
    num_rows: int, of_rows: Collection[int] | None = None, *, other_chance: bool = False
) -> Iterator[Draws]:
    """A draw for `num_rows` rows repeats one row; batch statistics are not taken.

    A layer's weights may have as many rows: `of_rows` are the places, in the order of drawing, of
    the draws that are for rows. With `other_chance` the draws that cannot be made alike have other
    seeds. Only for code that runs eagerly. Not for several threads.
    """
    draws = Draws()
    random = keras_backend.random
    replaced: list[tuple[Any, str, Any]] = []

    def replace(owner: Any, name: str, value: Callable) -> None:
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
        yield draws
    finally:
        while replaced:
            setattr(*replaced.pop())


def compilation(model: keras.Model) -> tuple[Any, Any]:
    """What `compile` made: the loss, anew each time, and the optimizer; None for what is not."""
    if not model.compiled:
        return None, None
    return model._compile_loss, model.optimizer


def _one_row(
    function: Callable,
    differing: Callable,
    num_rows: int,
    of_rows: Collection[int] | None,
    draws: Draws,
) -> Callable:
    @functools.wraps(function)
    def draw(shape, *args, **kwargs):
        place = draws.num_draws
        draws.num_draws += 1
        sizes = [int(size) for size in shape]
        is_of_rows = bool(sizes) and sizes[0] == num_rows
        if not is_of_rows or (of_rows is not None and place not in of_rows):
            return function(shape, *args, **kwargs)
        draws.of_rows.add(place)
        if any(len(keras.ops.shape(value)) for value in _tensors(args, kwargs)):
            return differing(shape, *args, **kwargs)  # Its parameters are for each row.
        row = function([1, *sizes[1:]], *args, **kwargs)
        return tf.repeat(row, num_rows, axis=0)

    return draw


def _counted(function: Callable, draws: Draws) -> Callable:
    @functools.wraps(function)
    def draw(*args, **kwargs):
        draws.num_draws += 1
        return function(*args, **kwargs)

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


def _noticed(function: Callable, draws: Draws, other_chance: bool) -> Callable:
    signature = inspect.signature(function)

    @functools.wraps(function)
    def draw(*args, **kwargs):
        draws.are_alike = False
        # Also with other seeds: it moves the generator on, which later draws use.
        value = function(*args, **kwargs)
        if not other_chance:
            return value
        given = signature.bind(*args, **kwargs)
        given.arguments["seed"] = _OTHER_SEED + draws.num_draws
        return function(*given.args, **given.kwargs)

    return draw


def _without_training(function: Callable) -> Callable:
    @functools.wraps(function)
    def call(self, inputs, training=None, mask=None):
        return function(self, inputs, training=False, mask=mask)

    return call
