"""Every form of `data` as one indexed stream of global batches."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.readers import Reader, as_arrays

DEFAULT_SHUFFLE_BUFFER = 10_000


class Stream(Protocol):
    """Passes over the data. `open` gives the batches of a pass from one of them on."""

    batch_size: int | None
    num_batches: int | None
    arrays: Any  # the whole data where it is in memory, for checks before anything is compiled

    @property
    def element_spec(self) -> Any: ...
    def open(self, epoch: int, start: int) -> tf.data.Dataset: ...
    def reopen(self) -> tf.data.Dataset | None: ...
    def close(self) -> None: ...


@dataclass(frozen=True)
class Provider:
    """How a provider is read; see `read_provider`."""

    source: Any
    reader_threads: int = 1
    capacity: int = 8
    drop_remainder: bool = False


def read_provider(
    provider: Any, *, reader_threads: int = 1, capacity: int = 8, drop_remainder: bool = False
) -> Provider:
    """Says how a provider (`batch_size` and `get_batch_data()`) is read in the background.

    A provider itself can be given as `data`; this is for other than the default options.

    Args:
        provider: An object with `batch_size` and `get_batch_data()`.
        reader_threads: How many threads call `get_batch_data`, which must then be thread-safe.
        capacity: How many batches are kept ready.
        drop_remainder: Whether a batch smaller than `batch_size` is left out.

    Returns:
        What `fit`, `evaluate` and `predict` take as `data`.

    Example:
        >>> import kerasdist
        >>> class Squares:
        ...     batch_size = 2
        ...     left = 3
        ...     def get_batch_data(self):
        ...         if self.left == 0:
        ...             self.left = 3
        ...             return None
        ...         self.left -= 1
        ...         return [[1.0], [2.0]], [[1.0], [4.0]]
        >>> data = kerasdist.read_provider(Squares(), capacity=2)
        >>> data.capacity
        2
    """
    for name, value in (("reader_threads", reader_threads), ("capacity", capacity)):
        if not isinstance(value, int) or value < 1:
            raise KerasdistError(
                f"Received `{name}={value!r}`. Expected a whole number of at least 1. Give for "
                f"example `{name}=1`."
            )
    return Provider(provider, reader_threads, capacity, drop_remainder)


def open_stream(
    data: Any,
    *,
    batch_size: int | None = None,
    shuffle: bool | int = False,
    seed: int = 0,
    name: str = "data",
    default_batch_size: int | None = None,
) -> Stream:
    """Sorts `data` into its form. `default_batch_size` serves forms that need one and got none."""
    if batch_size is not None and (
        isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1
    ):
        raise KerasdistError(
            f"Received `batch_size={batch_size!r}`. Expected a whole number of at least 1: the "
            "examples of one step over all devices. Give for example `batch_size=128`."
        )
    if isinstance(data, tf.data.Dataset):
        return _dataset_stream(data, batch_size, shuffle, seed, name)
    if isinstance(data, keras.utils.PyDataset):
        _refuse_second_batch_size(batch_size, name, "a `keras.utils.PyDataset`")
        return _PyDatasetStream(data)
    if isinstance(data, Provider) or hasattr(data, "get_batch_data"):
        provider = data if isinstance(data, Provider) else Provider(data)
        _refuse_second_batch_size(batch_size, name, "a provider")
        return _ProviderStream(provider)
    if isinstance(data, types.GeneratorType) or (
        hasattr(data, "__next__") and not hasattr(data, "__getitem__")
    ):
        _refuse_second_batch_size(batch_size, name, "a generator")
        return _PythonStream(_once(data, name), is_one_shot=True)
    if callable(data) and not hasattr(data, "__getitem__"):
        _refuse_second_batch_size(batch_size, name, "a generator function")
        return _PythonStream(lambda epoch, start: _skip(iter(data()), start))
    if _is_array_like(data):
        size = _require_batch_size(batch_size or default_batch_size, name, "arrays")
        return _ArrayStream(data, size, bool(shuffle), seed, name)
    if hasattr(data, "__len__") and hasattr(data, "__getitem__"):
        size = _require_batch_size(batch_size or default_batch_size, name, "single examples")
        return _SourceStream(data, size, bool(shuffle), seed, name)
    raise KerasdistError(
        f"Received `{name}` of type {type(data).__name__}. Expected arrays, a `tf.data.Dataset`, "
        "something with `__len__` and `__getitem__`, a `keras.utils.PyDataset`, a provider with "
        "`get_batch_data()`, or a generator function. Convert it to one of these."
    )


def order(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """The order of the examples in a pass: a function of (seed, epoch)."""
    return np.random.default_rng([seed, epoch]).permutation(num_examples)


def _require_batch_size(batch_size: int | None, name: str, what: str) -> int:
    if batch_size is None:
        raise KerasdistError(
            f"Received `{name}` made of {what} and no `batch_size`. Expected the number of examples "
            "of one step over all devices. Give for example `batch_size=128`."
        )
    return batch_size


def _refuse_second_batch_size(batch_size: int | None, name: str, what: str) -> None:
    if batch_size is not None:
        raise KerasdistError(
            f"Received `batch_size={batch_size}` with `{name}`, {what}, which makes batches itself. "
            "Expected the batch size in one place. Leave `batch_size` out."
        )


def _is_array_like(data: Any) -> bool:
    if isinstance(data, dict):
        return bool(data) and all(_is_array_like(value) for value in data.values())
    if isinstance(data, (tuple, list)):
        return len(data) > 0 and (
            all(isinstance(v, (int, float, bool, np.generic)) for v in data)
            or all(v is None or _is_array_like(v) for v in data)
        )
    return isinstance(data, np.ndarray) or tf.is_tensor(data) or hasattr(data, "__array__")


class _ArrayStream:
    def __init__(self, data: Any, batch_size: int, shuffle: bool, seed: int, name: str):
        if isinstance(data, list):
            data = tuple(data)
        if isinstance(data, tuple):
            while data and data[-1] is None:  # Keras's habit: (x, y, None)
                data = data[:-1]
        self.arrays = as_arrays(data)
        sizes = {len(a) if a.ndim else None for a in tf.nest.flatten(self.arrays)}
        if len(sizes) != 1 or None in sizes:
            shapes = tf.nest.map_structure(lambda a: a.shape, self.arrays)
            raise KerasdistError(
                f"Received `{name}` with arrays of shapes {shapes}. Expected the same first "
                "dimension, the number of examples, in all. Cut them to one length."
            )
        (self._num_examples,) = sizes
        if self._num_examples == 0:
            raise KerasdistError(
                f"Received `{name}` with 0 examples. Expected at least one. Check how it was read."
            )
        self.batch_size = batch_size
        self.num_batches = -(-self._num_examples // batch_size)
        self._shuffle, self._seed = shuffle, seed
        self._tensors: Any = None

    @property
    def element_spec(self) -> Any:
        return tf.nest.map_structure(
            lambda a: tf.TensorSpec(
                [None, *a.shape[1:]], tf.string if a.dtype.kind in "OUS" else a.dtype
            ),
            self.arrays,
        )

    def open(self, epoch: int, start: int) -> tf.data.Dataset:
        if self._tensors is None:
            with tf.device("CPU:0"):
                self._tensors = tf.nest.map_structure(tf.convert_to_tensor, self.arrays)
        n, size = self._num_examples, self.batch_size
        batches = tf.data.Dataset.range(start, self.num_batches)
        if self._shuffle:
            with tf.device("CPU:0"):
                indices = tf.constant(order(self._seed, epoch, n))

            def batch(i):
                rows = indices[i * size : tf.minimum((i + 1) * size, n)]
                return tf.nest.map_structure(lambda t: tf.gather(t, rows), self._tensors)
        else:

            def batch(i):
                return tf.nest.map_structure(
                    lambda t: t[i * size : tf.minimum((i + 1) * size, n)], self._tensors
                )

        return batches.map(batch, num_parallel_calls=tf.data.AUTOTUNE)

    def reopen(self) -> None:
        return None

    def close(self) -> None:
        self._tensors = None


class _DatasetStream:
    arrays = None

    def __init__(self, dataset: tf.data.Dataset, batch_size: int | None, shuffle: int, seed: int):
        self._dataset = dataset
        self._shuffle, self._seed, self.batch_size = shuffle, seed, batch_size
        cardinality = int(dataset.cardinality())
        self.is_endless = cardinality == tf.data.INFINITE_CARDINALITY
        self.num_batches = None
        if cardinality >= 0:
            self.num_batches = -(-cardinality // batch_size) if batch_size else cardinality

    @property
    def element_spec(self) -> Any:
        return self.open(0, 0).element_spec

    def open(self, epoch: int, start: int) -> tf.data.Dataset:
        dataset = self._dataset
        if self.batch_size is not None:
            if self._shuffle:
                words = np.random.SeedSequence([self._seed, epoch]).generate_state(1)
                dataset = dataset.shuffle(
                    self._shuffle, seed=int(words[0]) >> 1, reshuffle_each_iteration=False
                )
            dataset = dataset.batch(self.batch_size)
        return dataset.skip(start) if start else dataset

    def reopen(self) -> None:
        return None

    def close(self) -> None:
        pass


def _dataset_stream(
    dataset: tf.data.Dataset, batch_size: int | None, shuffle: bool | int, seed: int, name: str
) -> Stream:
    leaves = tf.nest.flatten(dataset.element_spec)
    for leaf in leaves:
        if not isinstance(leaf, tf.TensorSpec):
            raise KerasdistError(
                f"Received `{name}` with an element of {type(leaf).__name__}. Expected dense "
                "tensors. Use `padded_batch`, `.to_tensor()` or `tf.sparse.to_dense` in a `map`."
            )
    if int(dataset.cardinality()) == 0:
        raise KerasdistError(
            f"Received `{name}`, a `tf.data.Dataset` with no elements. Expected at least one. "
            "Check how it was read."
        )
    ranks = [leaf.shape.rank for leaf in leaves]
    if batch_size is None and 0 in ranks:
        _require_batch_size(None, name, "single examples")
    # Examples have fixed sizes as a rule, and a label without dimensions.
    if batch_size is not None and all(r is not None and r > 0 for r in ranks):
        if all(leaf.shape[0] is None for leaf in leaves):
            _refuse_second_batch_size(batch_size, name, "a `tf.data.Dataset` of batches")
    if batch_size is None and None in ranks:
        # Shapes that TensorFlow does not know are taken from the batches themselves.
        read = lambda epoch, start: dataset.skip(start).as_numpy_iterator()  # noqa: E731
        return _PythonStream(read)
    buffer = 0
    if shuffle:
        buffer = DEFAULT_SHUFFLE_BUFFER if shuffle is True else int(shuffle)
        if int(dataset.cardinality()) > 0:
            buffer = min(buffer, int(dataset.cardinality()))
    return _DatasetStream(dataset, batch_size, buffer, seed)


class _PythonStream:
    """Batches that Python makes, read in the background."""

    arrays = None
    batch_size: int | None = None
    num_batches: int | None = None

    def __init__(
        self,
        make_batches: Callable[[int, int], Iterator[Any]] | None,
        *,
        is_one_shot: bool = False,
        **reader_options: Any,
    ):
        self.is_one_shot = is_one_shot
        self._reader = Reader(make_batches, **reader_options)

    @property
    def element_spec(self) -> Any:
        return self._reader.element_spec

    def open(self, epoch: int, start: int) -> tf.data.Dataset:
        return self._reader.open(epoch, start)

    def reopen(self) -> tf.data.Dataset | None:
        return self._reader.reopen()

    def close(self) -> None:
        self._reader.close()


class _SourceStream(_PythonStream):
    """Single examples by index, as `tfds.data_source` gives them."""

    def __init__(self, source: Any, batch_size: int, shuffle: bool, seed: int, name: str):
        num_examples = len(source)
        if num_examples == 0:
            raise KerasdistError(
                f"Received `{name}` with 0 examples. Expected at least one. Check how it was read."
            )
        self.batch_size = batch_size
        self.num_batches = -(-num_examples // batch_size)

        def make_batches(epoch: int, start: int) -> Iterator[Any]:
            indices = order(seed, epoch, num_examples) if shuffle else np.arange(num_examples)
            for first in range(start * batch_size, num_examples, batch_size):
                rows = [int(i) for i in indices[first : first + batch_size]]
                many = getattr(source, "__getitems__", None)
                examples = many(rows) if many else [source[i] for i in rows]
                arrays = [tf.nest.map_structure(np.asarray, e) for e in examples]
                yield tf.nest.map_structure(lambda *values: np.stack(values), *arrays)

        super().__init__(make_batches)


class _PyDatasetStream(_PythonStream):
    def __init__(self, dataset: keras.utils.PyDataset):
        length = dataset.num_batches
        if length == 0:
            raise KerasdistError(
                "Received a `keras.utils.PyDataset` with 0 batches. Expected at least one. Check "
                "its `__len__`."
            )
        self.num_batches = length

        def make_batches(epoch: int, start: int) -> Iterator[Any]:
            # Keras calls these around every pass.
            begin = getattr(dataset, "on_epoch_begin", None)
            if begin is not None:
                begin()
            i = start
            while length is None or i < length:
                yield dataset[i]
                i += 1
            dataset.on_epoch_end()

        super().__init__(make_batches)


class _ProviderStream(_PythonStream):
    def __init__(self, provider: Provider):
        source = provider.source
        size = getattr(source, "batch_size", None)
        if size is None:
            raise KerasdistError(
                f"Received the provider {type(source).__name__!r} without `batch_size`. Expected "
                "the attributes `batch_size` and `get_batch_data`. Add `batch_size`."
            )

        def read() -> Any:
            while True:
                batch = source.get_batch_data()
                if batch is None or not provider.drop_remainder:
                    return batch
                arrays = as_arrays(batch)
                if len(tf.nest.flatten(arrays)[0]) >= size:
                    return arrays

        super().__init__(
            None, read=read, num_threads=provider.reader_threads, capacity=provider.capacity
        )
        self.batch_size = int(size)
        self.num_threads = provider.reader_threads


def _once(iterator: Iterator[Any], name: str) -> Callable[[int, int], Iterator[Any]]:
    def make_batches(epoch: int, start: int) -> Iterator[Any]:
        if epoch > 0:
            raise KerasdistError(
                f"Received `{name}`, a generator that can be read only once, and it ended before "
                "the training did. Expected a generator function, which gives a new generator for "
                "each epoch. Pass the function itself, not its result."
            )
        return _skip(iterator, start)

    return make_batches


def _skip(batches: Iterator[Any], count: int) -> Iterator[Any]:
    for i, batch in enumerate(batches):
        if i >= count:
            yield batch
