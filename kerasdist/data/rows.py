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

    With `of_one_size`, batches that all have as many rows come with their size known, which saves
    a third of the operations of a small step. What is known is computed beforehand, though, into
    other bits than where it is not known (a quotient becomes a product).

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
    of_one_size: bool = False

    @property
    def num_rows(self) -> int:
        return tf.nest.flatten(self.arrays)[0].shape[0]

    @property
    def num_batches(self) -> int:
        """Of the whole pass."""
        return -(-self.num_rows // self.size)

    def batch(self, number: tf.Tensor) -> Any:
        """The `number`-th of the pass."""
        if self.of_one_size and self.num_rows % self.size == 0:
            return self._full_batch(number)
        first = number * self.size
        end = tf.minimum(first + self.size, self.num_rows)
        if self.order is None:
            return tf.nest.map_structure(lambda v: v[first:end], self.arrays)
        chosen = self.order[first:end]
        return tf.nest.map_structure(lambda v: tf.gather(v, chosen), self.arrays)

    def _full_batch(self, number: tf.Tensor) -> Any:
        if self.order is None:
            first = number * self.size

            def rows_of(array):
                begin = [first, *[0] * (len(array.shape) - 1)]
                return tf.slice(array, begin, [self.size, *array.shape[1:]])

            return tf.nest.map_structure(rows_of, self.arrays)
        chosen = tf.gather(tf.reshape(self.order, [-1, self.size]), number)
        return tf.nest.map_structure(lambda v: tf.gather(v, chosen), self.arrays)
