"""Data that Python makes, as streams of batches read in the background."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice
from numbers import Integral
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.data.reader import Reader, as_arrays, check_rows
from kerasdist.devices.placement import Share
from kerasdist.errors import KerasdistError


@dataclass(frozen=True)
class Provider:
    """How a provider is read; see `read_provider`."""

    source: Any
    reader_threads: int = 1
    capacity: int = 8
    drop_remainder: bool = False


def order(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """The order of the examples in a pass: a function of (seed, epoch)."""
    return np.random.default_rng([seed, epoch]).permutation(num_examples)


def check_batch_size(batch_size: Any, meaning: str) -> None:
    if batch_size is None:
        return
    if isinstance(batch_size, bool) or not isinstance(batch_size, Integral) or batch_size < 1:
        raise KerasdistError(
            f"Received `batch_size={batch_size!r}`. Expected a whole number of at least 1: "
            f"{meaning}. Give for example `batch_size=128`."
        )


class PythonStream:
    """Batches that Python makes, read in the background."""

    arrays = None
    batch_size: int | None = None
    num_batches: int | None = None
    is_endless = False
    has_empty_epochs = False
    read_ahead = 1  # The reader has a buffer of its own, of the size that was asked for.

    def __init__(
        self,
        make_batches: Callable[[int, int], Iterator[Any]] | None = None,
        *,
        is_one_shot: bool = False,
        num_threads: int = 1,
        name: str = "data",
        **reader_options: Any,
    ):
        self.is_one_shot = is_one_shot
        self.is_forward_only = make_batches is None
        self.num_threads = num_threads
        self._name = name
        self._reader = Reader(make_batches, num_threads=num_threads, name=name, **reader_options)

    def rows(self, epoch: int, start: int) -> None:
        return None

    @property
    def element_spec(self) -> Any:
        return self._reader.element_spec

    @property
    def last_change(self) -> tuple[str, Any]:
        return self._reader.last_change

    def open(self, epoch: int, start: int) -> tf.data.Dataset:
        return self._reader.open(epoch, start)

    def take_share(self, share: Share) -> bool:
        return False

    def first_batch(self) -> Any:
        return self._reader.first_batch()

    def reopen(self) -> tf.data.Dataset | None:
        return self._reader.reopen()

    def check(self) -> None:
        self._reader.check()

    def close(self) -> None:
        self._reader.close()


class SourceStream(PythonStream):
    """Single examples by index, as `tfds.data_source` gives them."""

    def __init__(self, source: Any, batch_size: int, shuffle: bool, seed: int, name: str):
        num_examples = len(source)
        if num_examples == 0:
            raise KerasdistError(
                f"Received `{name}` with 0 examples. Expected at least one. Check how it was read."
            )
        self.batch_size, self.num_examples = batch_size, num_examples
        self.num_batches = -(-num_examples // batch_size)
        self._share: Share | None = None

        def make_batches(epoch: int, start: int) -> Iterator[Any]:
            indices = order(seed, epoch, num_examples) if shuffle else np.arange(num_examples)
            for first in range(start * batch_size, num_examples, batch_size):
                rows = [int(i) for i in indices[first : first + batch_size]]
                if self._share is not None:
                    rows = rows[slice(*self._share.rows(len(rows)))]
                many = getattr(source, "__getitems__", None)
                examples = many(rows) if many else [source[i] for i in rows]
                where = f"batch {first // batch_size} (from 0) of `{name}`"
                yield _stack([as_arrays(example, where) for example in examples], where)

        super().__init__(make_batches, name=name)

    def take_share(self, share: Share) -> bool:
        self._share = share
        self._reader.close()  # What was read to look at its shapes is a whole batch.
        return True


def _stack(examples: list[Any], where: str) -> Any:
    try:
        return tf.nest.map_structure(lambda *values: np.stack(values), *examples)
    except (ValueError, TypeError):
        shapes = [tf.nest.map_structure(np.shape, e) for e in examples]
        other = next((s for s in shapes if s != shapes[0]), shapes[0])
        raise KerasdistError(
            f"Received {where} with examples of the shapes {shapes[0]} and {other}. Expected the "
            "same in all examples. Cut or fill them up in `__getitem__`."
        ) from None


class PyDatasetStream(PythonStream):
    """Batches by index. Shuffling changes their order: a function of (seed, epoch)."""

    def __init__(self, dataset: keras.utils.PyDataset, shuffle: bool, seed: int, name: str):
        length = dataset.num_batches
        if length == 0:
            raise KerasdistError(
                f"Received `{name}`, a `keras.utils.PyDataset` with 0 batches. Expected at least "
                "one. Check its `__len__`."
            )
        self.num_batches = length
        self.is_endless = length is None

        num_ended, has_begun = 0, False

        def begin(epoch: int, start: int) -> None:
            """Calls the dataset's hooks as Keras does: as often before a resumed pass as ever."""
            nonlocal num_ended, has_begun
            if epoch == 0 and start == 0:
                dataset.on_epoch_end()  # Keras does so before the first pass, too.
                num_ended, has_begun = 0, False
            while num_ended < epoch:
                end()
            if not has_begun:
                dataset.on_epoch_begin()
                has_begun = True

        def end() -> None:
            nonlocal num_ended, has_begun
            if not has_begun:
                dataset.on_epoch_begin()
            dataset.on_epoch_end()
            num_ended, has_begun = num_ended + 1, False

        def make_batches(epoch: int, start: int) -> Iterator[Any]:
            begin(epoch, start)
            if length is None:
                yield from (dataset[i] for i in count(start))
            else:
                numbers = order(seed, epoch, length) if shuffle else np.arange(length)
                yield from (dataset[int(i)] for i in numbers[start:])
            end()

        super().__init__(make_batches, name=name)


class ProviderStream(PythonStream):
    def __init__(self, provider: Provider, name: str):
        source = provider.source
        kind = source.__name__ if isinstance(source, type) else type(source).__name__
        if isinstance(source, type):
            raise KerasdistError(
                f"Received `{name}`, the class {kind!r}. Expected an object of it. Pass "
                f"`{kind}(...)`."
            )
        if not hasattr(source, "get_batch_data") or getattr(source, "batch_size", None) is None:
            missing = "batch_size" if hasattr(source, "get_batch_data") else "get_batch_data"
            raise KerasdistError(
                f"Received `{name}`, the provider {kind!r} without `{missing}`. Expected the "
                f"attributes `batch_size` and `get_batch_data`. Add `{missing}`."
            )
        check_batch_size(source.batch_size, f"the examples that {kind!r} returns at a time")
        size = int(source.batch_size)

        def read() -> Any:
            while True:
                batch = source.get_batch_data()
                if batch is None or not provider.drop_remainder:
                    return batch
                arrays = as_arrays(batch, f"a batch of `{name}`")
                if check_rows(arrays, f"a batch of `{name}`") >= size:
                    return arrays

        super().__init__(
            read=read,
            num_threads=provider.reader_threads,
            capacity=provider.capacity,
            name=name,
        )
        self.batch_size = size


def from_function(function: Callable, epoch: int, start: int) -> Iterator[Any]:
    """The batches of a generator function from `start` on."""
    batches = function()
    if not hasattr(batches, "__iter__"):
        raise KerasdistError(
            f"Received as data a function that returned {type(batches).__name__}. Expected a "
            "generator function, which yields batches. Use `yield` in it."
        )
    return islice(batches, start, None) if start else iter(batches)
