"""Every form of `data` as one indexed stream of global batches."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from numbers import Integral
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from kerasdist.data.arrays import ArrayStream, Sequences, SequenceStream, TensorStream
from kerasdist.data.python_sources import (
    Provider,
    ProviderStream,
    PyDatasetStream,
    PythonStream,
    SourceStream,
    check_batch_size,
    from_function,
)
from kerasdist.data.rows import Rows
from kerasdist.devices.placement import Share
from kerasdist.devices.private_tensorflow import inputs_of
from kerasdist.errors import KerasdistError

DEFAULT_SHUFFLE_BUFFER = 10_000


class Stream(Protocol):
    """Passes over the data. `open` gives the batches of a pass from one of them on."""

    batch_size: int | None
    num_batches: int | None
    arrays: Any  # the whole data where it is in memory, for checks before anything is compiled
    is_endless: bool
    is_one_shot: bool
    has_empty_epochs: bool  # An epoch that begins at the end of a pass has no steps, as in Keras.
    is_forward_only: bool  # What was read cannot be read again.
    num_threads: int
    read_ahead: int  # batches that tf.data may keep ready

    @property
    def last_change(self) -> tuple[str, Any]: ...  # the batch that a dataset ended at, and its spec
    @property
    def element_spec(self) -> Any: ...
    def first_batch(self) -> Any: ...  # stays where it is
    def take_share(self, share: Share) -> bool: ...  # whether it reads that part alone from now on
    def open(self, epoch: int, start: int) -> tf.data.Dataset: ...
    def rows(self, epoch: int, start: int) -> Rows | None: ...  # the same, without a thread
    def reopen(self) -> tf.data.Dataset | None: ...
    def check(self) -> None: ...
    def close(self) -> None: ...


def read_provider(
    provider: Any, *, reader_threads: int = 1, capacity: int = 8, drop_remainder: bool = False
) -> Provider:
    """Says how a provider (`batch_size` and `get_batch_data()`) is read in the background.

    A provider itself can be given as `data`; this is for other than the default options.

    Args:
        provider: An object with `batch_size` and `get_batch_data()`.
        reader_threads: How many threads call `get_batch_data`, which must then be thread-safe. The
            first that meets the end of a pass ends it; what the others are reading still counts
            to it, also if the provider has begun the next pass for them.
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
        if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
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
    check_batch_size(batch_size, "the examples of one step over all devices")
    if not isinstance(shuffle, (bool, np.bool_, Integral)) or shuffle < 0:
        raise KerasdistError(
            f"Received `shuffle={shuffle!r}`. Expected True, False, or for a `tf.data.Dataset` of "
            "examples the size of the buffer. Give for example `shuffle=10000`."
        )
    if isinstance(data, tf.data.Dataset):
        return _dataset_stream(data, batch_size, shuffle, seed, name)
    if isinstance(data, keras.utils.PyDataset):
        _refuse_second_batch_size(batch_size, name, "a `keras.utils.PyDataset`")
        return PyDatasetStream(data, bool(shuffle), seed, name)
    if isinstance(data, Provider) or hasattr(data, "get_batch_data"):
        provider = data if isinstance(data, Provider) else Provider(data)
        _refuse_second_batch_size(batch_size, name, "a provider")
        return ProviderStream(provider, name)
    if isinstance(data, Sequences):
        size = _require_batch_size(batch_size or default_batch_size, name, "sequences")
        return SequenceStream(data, size, bool(shuffle), seed)
    if hasattr(data, "__next__") and not hasattr(data, "__getitem__"):
        _refuse_second_batch_size(batch_size, name, "a generator")
        return PythonStream(read=partial(next, data), is_one_shot=True, name=name)
    if callable(data) and not hasattr(data, "__getitem__"):
        _refuse_second_batch_size(batch_size, name, "a generator function")
        return PythonStream(partial(from_function, data), name=name)
    is_examples = _is_list_of_examples(data)
    if isinstance(data, list) and not is_examples and _is_array_like(data):
        # A list is several inputs, and a tuple (x, y[, sample_weight]). In `validation_data` Keras
        # takes both for the latter.
        data = tuple(data) if name == "validation_data" else (data,)
    if _is_array_like(data) and not is_examples:
        size = _require_batch_size(batch_size or default_batch_size, name, "arrays")
        return ArrayStream(data, size, bool(shuffle), seed, name)
    # A tuple or a dict that is no arrays is a mistake, not a list of examples.
    has_index = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if is_examples or (has_index and not isinstance(data, (tuple, Mapping, str, bytes))):
        size = _require_batch_size(batch_size or default_batch_size, name, "single examples")
        return SourceStream(data, size, bool(shuffle), seed, name)
    is_structure = isinstance(data, (tuple, Mapping))
    if is_structure and not data:
        raise KerasdistError(
            f"Received `{name}` with 0 examples. Expected at least one. Check how it was read."
        )
    what = _kinds(data) if is_structure else f"type {type(data).__name__}"
    raise KerasdistError(
        f"Received `{name}` of {what}. Expected arrays, a `tf.data.Dataset`, something with "
        "`__len__` and `__getitem__`, a `keras.utils.PyDataset`, a provider with "
        "`get_batch_data()`, or a generator function. Convert it to one of these."
    )


def _require_batch_size(batch_size: int | None, name: str, what: str) -> int:
    if batch_size is None:
        raise KerasdistError(
            f"Received `{name}` made of {what} and no `batch_size`. Expected the number of "
            "examples of one step over all devices. Give for example `batch_size=128`."
        )
    return int(batch_size)


def _refuse_second_batch_size(batch_size: int | None, name: str, what: str) -> None:
    if batch_size is not None:
        raise KerasdistError(
            f"Received `batch_size={batch_size}` with `{name}`, {what}, which makes batches "
            "itself. Expected the batch size in one place. Leave `batch_size` out."
        )


def _is_array_like(data: Any) -> bool:
    if isinstance(data, Mapping):
        return bool(data) and all(_is_array_like(value) for value in data.values())
    if isinstance(data, (tuple, list)):
        return len(data) > 0 and (
            all(isinstance(v, (int, float, np.generic, str, bytes)) for v in data)
            or all(v is None or _is_array_like(v) for v in data)
        )
    return isinstance(data, np.ndarray) or tf.is_tensor(data) or hasattr(data, "__array__")


def _is_list_of_examples(data: Any) -> bool:
    """`[(x, y), (x, y), ...]` or `[{...}, {...}, ...]`; arrays come in a tuple or a dict."""
    return (
        isinstance(data, list)
        and len(data) > 0
        and (all(isinstance(v, Mapping) for v in data) or all(isinstance(v, tuple) for v in data))
    )


def _kinds(data: Any) -> str:
    pairs = data.items() if isinstance(data, Mapping) else enumerate(data)
    return ", ".join(f"{key!r}: {type(value).__name__}" for key, value in pairs)


class _DatasetStream(TensorStream):
    def __init__(self, dataset: tf.data.Dataset, batch_size: int | None, shuffle: int, seed: int):
        self._dataset = dataset
        self._shuffle, self._seed, self.batch_size = shuffle, seed, batch_size
        cardinality = int(dataset.cardinality())
        self.is_endless = cardinality == tf.data.INFINITE_CARDINALITY
        self.has_empty_epochs = cardinality == tf.data.UNKNOWN_CARDINALITY
        self.num_batches = self.num_examples = None
        if cardinality >= 0:
            self.num_examples = cardinality if batch_size else None
            self.num_batches = -(-cardinality // batch_size) if batch_size else cardinality

    @property
    def element_spec(self) -> Any:
        return self.open(0, 0).element_spec

    def open(self, epoch: int, start: int) -> tf.data.Dataset:
        dataset = self._dataset
        if self.batch_size is not None:
            if self._shuffle:
                dataset = _shuffled(dataset, self._shuffle, [self._seed, epoch])
            dataset = dataset.batch(self.batch_size)
        return dataset.skip(start) if start else dataset


def _shuffled(dataset: tf.data.Dataset, buffer: int, seeds: list[int]) -> tf.data.Dataset:
    """`Dataset.shuffle`, whose order also depends on the caller's `tf.random.set_seed`."""
    first, second = (int(word) for word in np.random.SeedSequence(seeds).generate_state(2))
    leaves = tf.nest.flatten(dataset.element_spec)
    variant = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        buffer_size=buffer,
        seed=first + 1,  # Two zeros would mean a random seed.
        seed2=second,
        output_types=[leaf.dtype for leaf in leaves],
        output_shapes=[leaf.shape for leaf in leaves],
        reshuffle_each_iteration=False,
    )
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


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
    shapes = [leaf.shape for leaf in leaves]
    if batch_size is None and _are_examples(shapes):
        _require_batch_size(None, name, "single examples")
    if batch_size is not None and _are_batches(dataset, shapes):
        _refuse_second_batch_size(batch_size, name, "a `tf.data.Dataset` of batches")
    buffer = 0
    if shuffle:
        buffer = DEFAULT_SHUFFLE_BUFFER if shuffle is True else int(shuffle)
        if int(dataset.cardinality()) > 0:
            buffer = min(buffer, int(dataset.cardinality()))
    stream = _DatasetStream(dataset, batch_size, buffer, seed)
    if all(shape.rank is not None for shape in shapes):
        return stream
    # Shapes that TensorFlow does not know are taken from the batches themselves.
    known = PythonStream(lambda e, start: stream.open(e, start).as_numpy_iterator(), name=name)
    known.batch_size, known.num_batches = stream.batch_size, stream.num_batches
    known.is_endless, known.has_empty_epochs = stream.is_endless, stream.has_empty_epochs
    return known


def _are_examples(shapes: list[tf.TensorShape]) -> bool:
    """Whether elements cannot be batches: one has no dimension, or the first ones differ."""
    sizes = {shape[0] for shape in shapes if shape.rank} - {None}
    return any(shape.rank == 0 for shape in shapes) or len(sizes) > 1


def _are_batches(dataset: tf.data.Dataset, shapes: list[tf.TensorShape]) -> bool:
    """Whether elements are batches: of unknown size, or made by `batch(drop_remainder=True)`."""
    sizes = {shape[0] if shape.rank else 0 for shape in shapes}
    if len(sizes) != 1 or 0 in sizes:
        return False
    if None in sizes:
        return True
    # A known size alone says nothing: an image and its mask have the same height.
    while len(inputs := inputs_of(dataset)) == 1:
        kind = type(dataset).__name__
        if any(word in kind for word in ("FlatMap", "Interleave", "Unbatch", "Window")):
            return False
        if "Batch" in kind:
            return True
        (dataset,) = inputs
    return False
