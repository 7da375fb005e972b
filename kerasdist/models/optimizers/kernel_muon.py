"""Muon for the kernels of convolutions. Keras's Muon leaves these to Adam."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

# Keller Jordan's coefficients of the Newton-Schulz iteration. They are steep at zero, so that a few
# rounds bring all singular values near 1.
_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


class KernelMuon(keras.optimizers.Optimizer):
    """Moves kernels of convolutions by orthogonal steps, and all other weights by Nesterov's SGD.

    A kernel is treated as a matrix of its filters. Before each step it is scaled to the norm that
    a matrix of filters of norm 1 has, so that one learning rate suits kernels of every size.

    Args:
        learning_rate: Learning rate of the kernels: approximately the norm of a filter's step.
        momentum: Momentum of the kernels.
        others_rate: Learning rate of all other weights, as a factor of the kernels' rate.
        others_momentum: Momentum of all other weights.
        rounds: Number of rounds of the Newton-Schulz iteration.
        **kwargs: Arguments of every Keras optimizer.

    Example:
        >>> import keras
        >>> from kerasdist.models.optimizers.kernel_muon import KernelMuon
        >>> model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3)])
        >>> model.compile(KernelMuon(0.1), "mse")
    """

    def __init__(
        self,
        learning_rate: float | keras.optimizers.schedules.LearningRateSchedule = 0.1,
        momentum: float = 0.7,
        others_rate: float = 1.0,
        others_momentum: float = 0.85,
        rounds: int = 3,
        **kwargs: Any,
    ):
        super().__init__(learning_rate=learning_rate, **kwargs)
        self.momentum = momentum
        self.others_rate = others_rate
        self.others_momentum = others_momentum
        self.rounds = rounds

    def build(self, variables: Sequence[keras.Variable]) -> None:
        if self.built:
            return
        super().build(variables)
        self.velocities = [self.add_variable_from_reference(v, name="velocity") for v in variables]

    def update_step(
        self, gradient: tf.Tensor, variable: keras.Variable, learning_rate: tf.Tensor
    ) -> None:
        velocity = self.velocities[self._get_variable_index(variable)]
        rate = ops.cast(learning_rate, variable.dtype)
        gradient = ops.cast(gradient, variable.dtype)
        is_kernel = len(variable.shape) >= 3
        momentum = self.momentum if is_kernel else self.others_momentum
        moved = velocity * momentum + gradient
        self.assign(velocity, moved)
        step = gradient + momentum * moved
        if not is_kernel:
            self.assign_sub(variable, rate * self.others_rate * step)
            return
        norm = ops.sqrt(ops.sum(ops.square(variable)))
        scaled = variable * (variable.shape[-1] ** 0.5 / (norm + 1e-7))
        self.assign(variable, scaled - rate * orthogonal(step, self.rounds))

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {
            "momentum": self.momentum,
            "others_rate": self.others_rate,
            "others_momentum": self.others_momentum,
            "rounds": self.rounds,
        }


def orthogonal(kernel: tf.Tensor, rounds: int) -> tf.Tensor:
    """Returns the kernel, as a matrix of its filters, with singular values near 1.

    Example:
        >>> import numpy as np
        >>> from kerasdist.models.optimizers.kernel_muon import orthogonal
        >>> near = orthogonal(np.diag([3.0, 2.0, 1.0]).reshape(3, 1, 3), rounds=5)
        >>> bool(np.all(np.abs(np.diag(near[:, 0]) - 1) < 0.4))
        True
    """
    a, b, c = _COEFFICIENTS
    shape = kernel.shape
    matrix = ops.reshape(kernel, (-1, shape[-1]))
    is_tall = matrix.shape[0] > matrix.shape[1]
    if is_tall:  # So that the products below are small.
        matrix = ops.transpose(matrix)
    matrix = matrix / (ops.sqrt(ops.sum(ops.square(matrix))) + 1e-7)
    for _ in range(rounds):
        square = ops.matmul(matrix, ops.transpose(matrix))
        matrix = a * matrix + ops.matmul(b * square + c * ops.matmul(square, square), matrix)
    return ops.reshape(ops.transpose(matrix) if is_tall else matrix, shape)
