"""Batches that the compiled loop takes out of arrays by itself, without a thread beside it."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

# Larger batches are better taken by another thread while a step runs; for smaller ones the handing
# over takes longer (about 50 microseconds, CPU, TF 2.21) than taking them.
MAX_BATCH_BYTES = 2**18


class Rows(NamedTuple):
    """The rest of a pass over arrays: batches of `size` rows, from batch `position` on.

    `order` has the numbers of the rows; None if they come as they are.

    Example:
        >>> import tensorflow as tf
        >>> rows = Rows(tf.constant([5, 6, 7]), tf.constant([2, 0, 1]), tf.constant(1), 2)
        >>> int(rows.num_batches), rows.batch(0).numpy().tolist()
        (1, [6])
    """

    tensors: Any
    order: tf.Tensor | None
    position: tf.Tensor
    size: int

    @property
    def num_rows(self) -> tf.Tensor:
        return tf.shape(tf.nest.flatten(self.tensors)[0], out_type=tf.int64)[0]

    @property
    def num_batches(self) -> tf.Tensor:
        """How many are left."""
        return -(-self.num_rows // self.size) - tf.cast(self.position, tf.int64)

    def batch(self, number: Any) -> Any:
        """The batch `number` places after the position."""
        first = (tf.cast(self.position, tf.int64) + tf.cast(number, tf.int64)) * self.size
        end = tf.minimum(first + self.size, self.num_rows)
        if self.order is None:
            return tf.nest.map_structure(lambda t: t[first:end], self.tensors)
        chosen = self.order[first:end]
        return tf.nest.map_structure(lambda t: tf.gather(t, chosen), self.tensors)
