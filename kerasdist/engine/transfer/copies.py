"""Variables on the devices of a run: the caller's own ones, or copies of them."""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

# A variable on each device.
Copies = tuple[tf.Variable, ...]


def placed(owners: Sequence[tf.Variable], devices: Sequence[str], first: str) -> list[Copies]:
    """Each variable on each device. Those that are on the `first` one already are not copied."""
    # Variables made in a strategy's scope belong to its replicas, not to these.
    is_here = all(
        v.device.endswith(first) and not isinstance(v, tf.distribute.DistributedValues)
        for v in owners
    )
    if not is_here:
        return copied(owners, devices)
    others = copied(owners, devices[1:])
    return [(owner, *copies) for owner, copies in zip(owners, others, strict=True)]


def copied(variables: Sequence[tf.Variable], devices: Sequence[str]) -> list[Copies]:
    """A new copy of each variable on each device."""
    return [tuple(_variable(v.numpy(), v.dtype, d) for d in devices) for v in variables]


def _variable(value: np.ndarray, dtype: tf.DType, device: str) -> tf.Variable:
    with tf.device(device):
        return tf.Variable(value, dtype=dtype, trainable=False)


def free(copies: Iterable[Copies], kept: Container[int]) -> None:
    """Frees the memory of copies, but for those whose id is in `kept`.

    Compiled functions hold the variables until Python collects them, which may be late.
    """
    for variable in itertools.chain.from_iterable(copies):
        if id(variable) not in kept:
            empty = tf.zeros([0], variable.dtype)
            tf.raw_ops.AssignVariableOp(resource=variable.handle, value=empty)


def assign(variable: tf.Variable, value: Any) -> None:
    variable.assign(value)


def fill(variable: tf.Variable, value: Any) -> None:
    """Writes a variable that `free` may have emptied: `assign` would compare the shapes."""
    with tf.device(variable.device):
        value = tf.convert_to_tensor(value, variable.dtype)
        tf.raw_ops.AssignVariableOp(resource=variable.handle, value=value)


class Reads(Sequence[tf.Tensor]):
    """The values of variables, each read when it is first needed.

    A value that was read holds its memory until its last use, also if the variable has a new one.
    """

    def __init__(self, variables: Sequence[tf.Variable]):
        self._variables = variables
        self._values: dict[int, tf.Tensor] = {}

    def __len__(self) -> int:
        return len(self._variables)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(len(self))[index]]
        if index not in self._values:
            self._values[index] = self._variables[index].read_value()
        return self._values[index]
