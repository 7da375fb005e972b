"""A Keras optimizer that writes the new values of variables where they are stored.

All new values at once would take as much memory as the weights and the optimizer's variables.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.stateless_scope import get_stateless_scope, in_stateless_scope

from kerasdist.models.pure.updates.fused import Fused


class InPlace(keras.StatelessScope):
    """A scope in which Keras's variables stand for other variables, which it reads and writes.

    Without `fused`, a variable is read, and a new value is used, after the last write to any other
    one. So only one is in work at a time, and memory is needed for the new value of one variable
    only. With `fused`, large variables need no such memory, and the others are updated several at
    once.

    Args:
        stored: What a Keras variable stands for, by its id.
        given: Values to start from instead of the stored ones, by the id of the Keras variable.
        fused: Compiled updates of large variables. Not on GPUs: it was never tried there.
    """

    def __init__(
        self,
        stored: Mapping[int, tf.Variable],
        given: Mapping[int, tf.Tensor],
        fused: Fused | None = None,
    ):
        super().__init__()
        self._stored, self.fused = stored, fused
        self._given = set(given)
        self.state_mapping.update(given)
        self._written: set[int] = set()
        self._last: list[tf.Tensor] = []

    def get_current_value(self, variable: keras.Variable) -> tf.Tensor | None:
        key = id(variable)
        if key not in self.state_mapping and key in self._stored:
            self.state_mapping[key] = self.read(self._stored[key])
        value = self.state_mapping.get(key)
        return self.later(value) if key in self._written else value

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        super().add_update(update)
        variable, value = update
        if id(variable) in self._stored:
            self._written.add(id(variable))
            self.write(self._stored[id(variable)], value)

    def stored(self, variable: keras.Variable) -> tf.Variable | None:
        """What a Keras variable stands for, if its value is there."""
        is_there = id(variable) in self._written or id(variable) not in self._given
        return self._stored.get(id(variable)) if is_there else None

    def is_written(self, key: int) -> bool:
        return key in self._written

    def has_written(self, variable: keras.Variable) -> None:
        """Forgets the value of a variable that was written without this scope."""
        self._written.add(id(variable))
        self.state_mapping.pop(id(variable), None)

    def read(self, variable: tf.Variable) -> tf.Tensor:
        with tf.control_dependencies(self._last):
            return variable.read_value()

    def write(self, variable: tf.Variable, value: tf.Tensor) -> None:
        written = variable.assign(value)
        self._last = [] if self.fused is not None else [written]

    def later(self, tensor: tf.Tensor) -> tf.Tensor:
        """The tensor, for operations that must not run before the last write.

        Other operations are not held back: TensorFlow shares those that are the same for all
        variables.
        """
        if not self._last:
            return tensor
        with tf.control_dependencies(self._last):
            return tf.identity(tensor)


def one_by_one(update_step: Callable[..., None]) -> Callable[..., None]:
    """Keras's `_backend_update_step`, which starts with a variable when the last one is written."""

    def backend_update_step(
        self: keras.optimizers.Optimizer,
        gradients: Sequence[tf.Tensor],
        trainable_variables: Sequence[keras.Variable],
        learning_rate: Any,
    ) -> None:
        scope = get_stateless_scope() if in_stateless_scope() else None
        if not isinstance(scope, InPlace):
            update_step(self, gradients, trainable_variables, learning_rate)
            return
        # The smallest first: when a large one needs memory, most gradients are gone.
        pairs = list(zip(gradients, trainable_variables, strict=True))
        for gradient, variable in sorted(pairs, key=lambda pair: math.prod(pair[1].shape)):
            given, fused = scope.later(gradient), scope.fused
            if fused is None or not fused.run(self, given, variable, learning_rate, scope):
                update_step(self, [given], [variable], learning_rate)

    return backend_update_step
