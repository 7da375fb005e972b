"""`keras.utils.PyDataset`s, which make whole batches by index."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import keras
import numpy as np

from kerasdist.data.batches import Batch
from kerasdist.data.forms.python_stream import PythonStream
from kerasdist.data.order import shuffled_order
from kerasdist.errors import KerasdistError


class PyDatasetStream(PythonStream):
    """The batches of a `PyDataset`. Shuffling changes their order, which (seed, epoch) decide."""

    def __init__(self, dataset: keras.utils.PyDataset, shuffle: bool, seed: int, name: str):
        length = dataset.num_batches
        if length == 0:
            raise KerasdistError(
                f"Received `{name}`, a `keras.utils.PyDataset` with 0 batches. Expected at least "
                "one. Check its `__len__`."
            )
        self.num_batches = length
        self.is_endless = length is None
        hooks = _EpochHooks(dataset)

        def make_batches(epoch: int, start: int) -> Iterator[Batch]:
            hooks.begin(epoch, start)
            if length is None:
                yield from (dataset[i] for i in count(start))
            else:
                numbers = shuffled_order(seed, epoch, length) if shuffle else np.arange(length)
                yield from (dataset[int(i)] for i in numbers[start:])
            hooks.end()

        super().__init__(make_batches, name=name)


class _EpochHooks:
    """Calls `on_epoch_begin` and `on_epoch_end` as often as Keras does, also for a resumed pass."""

    def __init__(self, dataset: keras.utils.PyDataset):
        self._dataset = dataset
        self._num_ended = 0
        self._has_begun = False

    def begin(self, epoch: int, start: int) -> None:
        if epoch == 0 and start == 0:
            self._dataset.on_epoch_end()  # Keras does so before the first pass, too.
            self._num_ended, self._has_begun = 0, False
        while self._num_ended < epoch:
            self.end()
        if not self._has_begun:
            self._dataset.on_epoch_begin()
            self._has_begun = True

    def end(self) -> None:
        if not self._has_begun:
            self._dataset.on_epoch_begin()
        self._dataset.on_epoch_end()
        self._num_ended, self._has_begun = self._num_ended + 1, False
