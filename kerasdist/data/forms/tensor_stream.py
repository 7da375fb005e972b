"""The defaults of a stream whose batches TensorFlow reads without Python."""

from __future__ import annotations

import tensorflow as tf

from kerasdist.data.batches import Batch, Spec
from kerasdist.data.rows import Rows
from kerasdist.devices.placement import Share


class TensorStream:
    """What arrays and `tf.data.Dataset`s have in common; see `Stream`."""

    arrays: Batch = None
    batch_size: int | None = None
    num_batches: int | None = None
    num_examples: int | None = None
    is_endless = False
    is_one_shot = False
    has_empty_epochs = False
    is_forward_only = False
    num_threads = 1
    read_ahead = tf.data.AUTOTUNE
    last_change: tuple[str, Spec] = ("", None)

    @property
    def element_spec(self) -> Spec:
        raise NotImplementedError

    def take_share(self, share: Share) -> bool:
        return False

    def first_batch(self) -> Batch:
        return next(iter(self.open(0, 0)), None)

    def open(self, epoch: int, start: int) -> tf.data.Dataset:
        raise NotImplementedError

    def rows(self, epoch: int, start: int) -> Rows | None:
        return None

    def reopen(self) -> tf.data.Dataset | None:
        return None

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass
