"""Hands single batches to a compiled loop, which reads them from an iterator.

The iterator stays the same, so the loop is compiled once for batches of all sizes.
"""

from __future__ import annotations

import weakref
from typing import Any

import keras
import tensorflow as tf

from kerasdist.data.preparation import part_of
from kerasdist.data.values import checker
from kerasdist.devices.placement import HOST, Share
from kerasdist.models.fields import has_unread, only_read
from kerasdist.models.value_checks import AllowNan, Labels

# Queues that nobody uses, by the types of their tensors. To delete a queue before the iterator that
# reads it ends the process, and the garbage collector deletes them in any order (TF 2.21).
_free: dict[tuple[tf.DType, ...], list[tf.queue.FIFOQueue]] = {}


def _queue(types: tuple[tf.DType, ...]) -> tf.queue.FIFOQueue:
    """An empty queue for one batch."""
    unused = _free.setdefault(types, [])
    if not unused:
        with tf.device(HOST):
            return tf.queue.FIFOQueue(1, types)
    queue = unused.pop()
    if queue.size() > 0:  # Its last call failed.
        queue.dequeue()
    return queue


def spec_of(batch: Any) -> Any:
    """`tf.TensorSpec`s of a batch of tensors, with an unknown number of rows."""
    return tf.nest.map_structure(lambda t: tf.TensorSpec([None, *t.shape[1:]], t.dtype), batch)


class BatchQueue:
    """A queue for one batch, and the iterator at its other end.

    Args:
        model: The model that reads the batches.
        spec: `tf.TensorSpec`s in the structure of the batches.
        labels: The class numbers to check.
        allow_nan: As in `kerasdist.fit`.
        share: The part of each batch that this worker reads, if there are several workers.
        needs_whole: Whether a worker reads whole batches all the same.
    """

    def __init__(
        self,
        model: keras.Model,
        spec: Any,
        *,
        labels: tuple[Labels, ...] = (),
        allow_nan: AllowNan = False,
        share: Share | None = None,
        needs_whole: bool = False,
    ):
        flat = tf.nest.flatten(spec)
        types = tuple(s.dtype for s in flat)
        self._queue = queue = _queue(types)
        weakref.finalize(self, _free[types].append, queue)
        check = checker(model, labels, "batch", allow_nan=allow_nan)

        def take(number: tf.Tensor) -> Any:
            found = queue.dequeue()
            found = found if isinstance(found, list) else [found]
            for tensor, known in zip(found, flat, strict=True):
                tensor.set_shape(known.shape)
            batch = check(number, tf.nest.pack_sequence_as(spec, found))
            if has_unread(model, batch):
                batch = only_read(model, batch)
            return batch if share is None else part_of(share, batch, needs_whole)

        # A tuple of one position would lose its structure in a dataset.
        numbers = tf.data.Dataset.range(tf.int64.max)
        keep = tf.autograph.experimental.do_not_convert(take)
        self.iterator = iter(numbers.map(keep))

    def put(self, batch: Any) -> None:
        """Puts a batch into the queue. The next step takes it out."""
        self._queue.enqueue(tf.nest.flatten(batch))
