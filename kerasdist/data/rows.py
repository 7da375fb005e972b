"""Batches of arrays that the compiled loop slices by itself, without a tf.data thread."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from kerasdist.data.batches import Batch


class Rows(NamedTuple):
    """The rest of a pass over arrays, which the compiled loop slices without a tf.data thread.

    Batches have `size` rows and start at batch `position`. `order` holds the row numbers in the
    order of the pass; it is None if the rows are not shuffled. Arrays and order are variables: the
    loop would hand tensors from step to step, which costs operations.

    With `of_one_size`, batches have a static size if they all have the same number of rows. This
    saves a third of the operations of a small step. But TensorFlow folds a static size into
    constants and then rounds differently (it turns a quotient into a product).

    Example:
        >>> import tensorflow as tf
        >>> arrays, order = (tf.Variable(values) for values in ([5, 6, 7], [2, 0, 1]))
        >>> rows = Rows(arrays, order, tf.constant(1, tf.int64), 2)
        >>> int(rows.num_batches), rows.batch(rows.position).numpy().tolist()
        (2, [6])
    """

    arrays: Batch
    order: tf.Variable | None
    position: tf.Tensor
    size: int
    of_one_size: bool = False

    @property
    def num_rows(self) -> int:
        return tf.nest.flatten(self.arrays)[0].shape[0]

    @property
    def num_batches(self) -> int:
        """The number of batches in the whole pass."""
        return -(-self.num_rows // self.size)

    def batch(self, number: tf.Tensor) -> Batch:
        """The batch with this number, counted from the start of the pass."""
        if self.of_one_size and self.num_rows % self.size == 0:
            return self._full_batch(number)
        first = number * self.size
        end = tf.minimum(first + self.size, self.num_rows)
        if self.order is None:
            return tf.nest.map_structure(lambda v: v[first:end], self.arrays)
        chosen = self.order[first:end]
        return tf.nest.map_structure(lambda v: tf.gather(v, chosen), self.arrays)

    def _full_batch(self, number: tf.Tensor) -> Batch:
        if self.order is None:
            first = number * self.size

            def rows_of(array: tf.Variable) -> tf.Tensor:
                begin = [first, *[0] * (len(array.shape) - 1)]
                return tf.slice(array, begin, [self.size, *array.shape[1:]])

            return tf.nest.map_structure(rows_of, self.arrays)
        chosen = tf.gather(tf.reshape(self.order, [-1, self.size]), number)
        return tf.nest.map_structure(lambda v: tf.gather(v, chosen), self.arrays)
