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

_HOOKS = ("on_epoch_begin", "on_epoch_end")


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
        hooks = self._hooks = _EpochHooks(dataset)
        # Its hooks may look at the model, for example to choose the examples that it gets wrong.
        self.looks_at_model = hooks.are_own

        def make_batches(epoch: int, start: int) -> Iterator[Batch]:
            hooks.begin(epoch, start)
            if length is None:
                yield from (dataset[i] for i in count(start))
            else:
                numbers = shuffled_order(seed, epoch, length) if shuffle else np.arange(length)
                yield from (dataset[int(i)] for i in numbers[start:])
            hooks.was_read()

        super().__init__(make_batches, name=name)

    def close(self) -> None:
        super().close()
        self._hooks.close()


class _EpochHooks:
    """Calls `on_epoch_begin` and `on_epoch_end` as often as Keras does, also for a resumed pass.

    Batches are read ahead. The end of a pass is told when the next one begins, or at the close:
    by then, the model has been trained on all of them.
    """

    def __init__(self, dataset: keras.utils.PyDataset):
        self._dataset = dataset
        self._num_ended = 0
        self._has_begun = self._is_read = False

    @property
    def are_own(self) -> bool:
        kind, base = type(self._dataset), keras.utils.PyDataset
        return any(getattr(kind, n) is not getattr(base, n) for n in _HOOKS)

    def was_read(self) -> None:
        """All batches of the pass were read. They may still be trained on."""
        self._is_read = True

    def close(self) -> None:
        """Tells the end of the last pass, if it was read to its end."""
        if self._is_read:
            self._end()

    def begin(self, epoch: int, start: int) -> None:
        self.close()
        if epoch == 0 and start == 0:
            self._dataset.on_epoch_end()  # Keras does so before the first pass, too.
            self._num_ended, self._has_begun, self._is_read = 0, False, False
        while self._num_ended < epoch:
            self._end()
        if not self._has_begun:
            self._dataset.on_epoch_begin()
            self._has_begun = True

    def _end(self) -> None:
        if not self._has_begun:
            self._dataset.on_epoch_begin()
        self._dataset.on_epoch_end()
        self._num_ended, self._has_begun, self._is_read = self._num_ended + 1, False, False
