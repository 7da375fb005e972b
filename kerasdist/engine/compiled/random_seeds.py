"""The seeds of random layers: functions of the training's seed, the step, the shard, the layer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeAlias

import tensorflow as tf

from kerasdist.devices.placement import HOST

# Where whole numbers are computed that decide what a device does.
Host: TypeAlias = Callable[[], AbstractContextManager[Any]]

# Two numbers that depend on the seed and the step. They are scalars below 2**31: on GPUs, such
# arguments of compiled functions stay on the host.
OfStep: TypeAlias = tuple[tf.Tensor, tf.Tensor]


class Seed:
    """The seed of a training, as a variable: compiled functions serve trainings of any seed.

    Example:
        >>> import tensorflow as tf
        >>> seed = Seed(1)
        >>> [int(number) for number in seed.of_step(tf.constant(3, tf.int64))]
        [480342317, 1952515352]
    """

    def __init__(self, value: int):
        self.value, self.is_traced = value, False
        with tf.device(HOST):
            self._variable = tf.Variable(value, dtype=tf.int64, trainable=False)

    def assign(self, value: int) -> None:
        self.value = value
        self._variable.assign(value)

    def note_trace(self) -> None:
        """Remembers that a compiled function depends on this value: a layer drew random numbers of
        Python or NumPy while it was traced."""
        self.is_traced = True

    def of_step(self, step: tf.Tensor) -> OfStep:
        """What all shards of a step share."""
        with tf.device(HOST):  # Seeds of operations on GPUs come from the host, too.
            numbers = _random_numbers((2,), tf.stack([self._variable.read_value(), step]))
            first, second = tf.unstack(numbers)
            return first, second


def of_generators(of_step: OfStep, index: tf.Tensor, count: int, host: Host) -> list[tf.Tensor]:
    """The states of `count` seed generators, for the shard with this index."""
    with host():
        of_shard = tf.stack([tf.constant(0, tf.int64), tf.cast(index, tf.int64)])
        return tf.unstack(_random_numbers((count, 2), tf.stack(of_step) + of_shard), count)


def _random_numbers(shape: tuple[int, ...], seed: tf.Tensor) -> tf.Tensor:
    return tf.random.stateless_uniform(
        shape, seed, minval=0, maxval=2**31 - 1, dtype=tf.int64, alg="philox"
    )
