"""Arrays in memory: NumPy arrays, tensors or lists, one row per example."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.data.batches import Batch, Spec, as_arrays, count_examples, spec_of
from kerasdist.data.forms.tensor_stream import TensorStream
from kerasdist.data.order import own_rows, shuffled_order
from kerasdist.data.rows import Rows
from kerasdist.devices.placement import Share
from kerasdist.models.tensors.composites import by_row, gather_rows, is_composite, rows_of

# The compiled loop slices batches up to this size by itself: that takes less time than getting
# them from a tf.data thread (about 50 microseconds, CPU, TF 2.21). Larger batches are better
# sliced by a thread while a step runs.
MAX_BATCH_BYTES = 2**18

# `shuffle="batch"`: as in Keras, batches keep their rows and their order, rows change places.
WITHIN_BATCHES = "batch"


class ArrayStream(TensorStream):
    """Batches of arrays. Each batch is a range of the pass's order: any of them opens at once."""

    batch_size: int
    num_batches: int
    num_examples: int

    def __init__(self, data: Any, batch_size: int, shuffle: bool | str, seed: int, name: str):
        self.arrays = as_arrays(data, f"`{name}`")
        self._plan(count_examples(self.arrays, f"`{name}`"), batch_size, shuffle, seed)

    def _plan(self, num_examples: int, batch_size: int, shuffle: bool | str, seed: int) -> None:
        self.num_examples = num_examples
        self.batch_size = batch_size
        self.num_batches = -(-num_examples // batch_size)
        self._shuffle, self._seed = shuffle, seed
        self._share: Share | None = None
        self._tensors: Batch = None
        self._take_rows: Any = None
        self._rows: Rows | None = None
        self._epoch: int | None = None
        self._fields: Callable[[Batch], Batch] = lambda arrays: arrays

    def keep_fields(self, choose: Callable[[Batch], Batch]) -> None:
        """Gives the compiled loop only the fields that `choose` leaves of the arrays."""
        self._fields = choose

    @property
    def element_spec(self) -> Spec:
        return spec_of(self.arrays)

    def take_share(self, share: Share) -> bool:
        self._share = share
        return True

    def rows(self, epoch: int, start: int) -> Rows | None:
        size = self.batch_size
        read = self._fields(self.arrays)
        leaves = tf.nest.flatten(read)
        if any(is_composite(a) or a.dtype.kind in "OUS" for a in leaves):
            return None  # The sizes of their rows differ.
        num_bytes = sum(a.nbytes // max(len(a), 1) for a in leaves) * size
        if self._share is not None or num_bytes > MAX_BATCH_BYTES:
            return None
        with tf.device("CPU:0"):
            position = tf.constant(start, tf.int64)
            if self._rows is None:
                arrays = tf.nest.map_structure(lambda a: tf.Variable(a, trainable=False), leaves)
                order = tf.Variable(self._order(epoch), trainable=False) if self._shuffle else None
                arrays = tf.nest.pack_sequence_as(read, arrays)
                self._rows, self._epoch = Rows(arrays, order, position, size), epoch
            elif self._epoch != epoch and self._rows.order is not None:
                self._rows.order.assign(self._order(epoch))
                self._epoch = epoch
        return self._rows._replace(position=position)

    def open(self, epoch: int, start: int) -> tf.data.Dataset:
        with tf.device("CPU:0"):
            if self._tensors is None:
                self._tensors = self._as_tensors()
                # Traced once for all passes.
                self._take_rows = tf.function(self._take, autograph=False)
            # Without shuffling a batch is a slice, which is cheaper.
            indices = tf.constant(self._order(epoch)) if self._shuffle else None
        n, size = self.num_examples, self.batch_size

        @tf.autograph.experimental.do_not_convert  # type: ignore[untyped-decorator]
        def batch(i: tf.Tensor) -> Batch:
            first, end = i * size, tf.minimum((i + 1) * size, n)
            own = (first, end) if self._share is None else own_rows(self._share, first, end)
            if indices is None:
                return self._slice(first, end, *own)
            return self._take_rows(indices[own[0] : own[1]], indices[first:end])

        batches = tf.data.Dataset.range(start, self.num_batches)
        return batches.map(batch, num_parallel_calls=tf.data.AUTOTUNE)

    def _as_tensors(self) -> Batch:
        return tf.nest.map_structure(by_row, self.arrays)

    def _order(self, epoch: int) -> np.ndarray:
        order = shuffled_order(self._seed, epoch, self.num_examples)
        if self._shuffle == WITHIN_BATCHES:
            return np.lexsort((order, np.arange(self.num_examples) // self.batch_size))
        return order

    def _slice(
        self, first: tf.Tensor, end: tf.Tensor, own_first: tf.Tensor, own_end: tf.Tensor
    ) -> Batch:
        """The worker's own rows of the batch from `first` to `end`."""
        return tf.nest.map_structure(lambda t: rows_of(t, own_first, own_end), self._tensors)

    def _take(self, rows: tf.Tensor, all_rows: tf.Tensor) -> Batch:
        """The worker's own rows of a shuffled batch; `all_rows` are those of all workers."""
        return tf.nest.map_structure(lambda t: gather_rows(t, rows), self._tensors)

    def indices(self, epoch: int, number: int) -> list[int]:
        """The numbers of the examples in a batch of a pass."""
        size = self.batch_size
        rows = slice(number * size, (number + 1) * size)
        order = self._order(epoch) if self._shuffle else np.arange(self.num_examples)
        return order[rows].tolist()

    def close(self) -> None:
        self._tensors = self._take_rows = self._rows = None
