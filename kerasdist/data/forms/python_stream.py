"""The defaults of a stream whose batches Python makes, in background threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import tensorflow as tf

from kerasdist.data.batches import Batch, Spec
from kerasdist.data.reader import Reader
from kerasdist.devices.placement import Share


class PythonStream:
    """Batches from `make_batches(epoch, start)`, or from `read()` if they cannot be read again.

    See `Stream` for the attributes and `Reader` for the two functions.
    """

    arrays: Batch = None
    batch_size: int | None = None
    num_batches: int | None = None
    num_examples: int | None = None
    is_endless = False
    has_empty_epochs = False
    looks_at_model = False
    read_ahead = 1  # The reader has its own buffer, of the size that was asked for.

    def __init__(
        self,
        make_batches: Callable[[int, int], Iterator[Batch]] | None = None,
        *,
        read: Callable[[], Batch] | None = None,
        is_one_shot: bool = False,
        num_threads: int = 1,
        capacity: int = 8,
        name: str = "data",
    ):
        self.is_one_shot = is_one_shot
        self.is_forward_only = make_batches is None
        self.num_threads = num_threads
        self._reader = Reader(
            make_batches, read=read, num_threads=num_threads, capacity=capacity, name=name
        )

    @property
    def element_spec(self) -> Spec:
        return self._reader.element_spec

    @property
    def last_change(self) -> tuple[str, Spec]:
        return self._reader.last_change

    def open(self, epoch: int, start: int) -> tf.data.Dataset:
        return self._reader.open(epoch, start)

    def rows(self, epoch: int, start: int) -> None:
        return None

    def take_share(self, share: Share) -> bool:
        return False

    def first_batch(self) -> Batch:
        return self._reader.first_batch()

    def reopen(self) -> tf.data.Dataset | None:
        return self._reader.reopen()

    def check(self) -> None:
        self._reader.check()

    def close(self) -> None:
        self._reader.close()
