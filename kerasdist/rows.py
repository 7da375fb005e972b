"""Batches that the compiled loop takes out of arrays by itself, without a thread beside it."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

# Larger batches are better taken by another thread while a step runs; for smaller ones the handing
# over takes longer (about 50 microseconds, CPU, TF 2.21) than taking them.
MAX_BATCH_BYTES = 2**18


class Rows(NamedTuple):
    """The rest of a pass over arrays: batches of `size` rows, from batch `position` on.

    `order` has the numbers of the rows; None if they come as they are. Arrays and order are
    variables: a tensor would be handed from step to step of the loop, which costs operations.

    Example:
        >>> import tensorflow as tf
        >>> arrays, order = (tf.Variable(values) for values in ([5, 6, 7], [2, 0, 1]))
        >>> rows = Rows(arrays, order, tf.constant(1, tf.int64), 2)
        >>> int(rows.num_batches), rows.batch(rows.position).numpy().tolist()
        (2, [6])
    """

    arrays: Any
    order: tf.Variable | None
    position: tf.Tensor
    size: int

    @property
    def num_rows(self) -> int:
        return tf.nest.flatten(self.arrays)[0].shape[0]

    @property
    def num_batches(self) -> int:
        """Of the whole pass."""
        return -(-self.num_rows // self.size)

    def batch(self, number: tf.Tensor) -> Any:
        """The `number`-th of the pass."""
        first = number * self.size
        end = tf.minimum(first + self.size, self.num_rows)
        if self.order is None:
            return tf.nest.map_structure(lambda v: v[first:end], self.arrays)
        chosen = self.order[first:end]
        return tf.nest.map_structure(lambda v: tf.gather(v, chosen), self.arrays)
