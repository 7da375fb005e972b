"""Every form of `data` as one indexed stream of global batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import islice
from numbers import Integral
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.readers import Reader, as_arrays, check_rows, spec_of

DEFAULT_SHUFFLE_BUFFER = 10_000


class Stream(Protocol):
    """Passes over the data. `open` gives the batches of a pass from one of them on."""

    batch_size: int | None
    num_batches: int | None
    arrays: Any  # the whole data where it is in memory, for checks before anything is compiled
    is_endless: bool
    is_one_shot: bool
    is_forward_only: bool  # What was read cannot be read again.
    num_threads: int
    read_ahead: int  # batches that tf.data may keep ready

    @property
    def last_change(self) -> tuple[str, Any]: ...  # the batch that a dataset ended at, and its spec
    @property
    def element_spec(self) -> Any: ...
    def open(self, epoch: int, start: int) -> tf.data.Dataset: ...
    def reopen(self) -> tf.data.Dataset | None: ...
    def check(self) -> None: ...
    def close(self) -> None: ...


class _TensorStream:
    """What streams that TensorFlow reads by itself have in common."""

    arrays: Any = None
    is_endless = False
    is_one_shot = False
    is_forward_only = False
    num_threads = 1
    read_ahead = tf.data.AUTOTUNE
    last_change: tuple[str, Any] = ("", None)

    def reopen(self) -> None:
        return None

    def check(self) -> None:
        pass

    def close(self) -> None:
        pass


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
    _check_batch_size(batch_size, "the examples of one step over all devices")
    if not isinstance(shuffle, (bool, np.bool_, Integral)) or shuffle < 0:
        raise KerasdistError(
            f"Received `shuffle={shuffle!r}`. Expected True, False, or for a `tf.data.Dataset` of "
            "examples the size of the buffer. Give for example `shuffle=10000`."
        )
    if isinstance(data, tf.data.Dataset):
        return _dataset_stream(data, batch_size, shuffle, seed, name)
    if isinstance(data, keras.utils.PyDataset):
        _refuse_second_batch_size(batch_size, name, "a `keras.utils.PyDataset`")
        return _PyDatasetStream(data, name)
    if isinstance(data, Provider) or hasattr(data, "get_batch_data"):
        provider = data if isinstance(data, Provider) else Provider(data)
        _refuse_second_batch_size(batch_size, name, "a provider")
        return _ProviderStream(provider, name)
    if hasattr(data, "__next__") and not hasattr(data, "__getitem__"):
        _refuse_second_batch_size(batch_size, name, "a generator")
        return _PythonStream(read=partial(next, data), is_one_shot=True, name=name)
    if callable(data) and not hasattr(data, "__getitem__"):
        _refuse_second_batch_size(batch_size, name, "a generator function")
        return _PythonStream(partial(_call, data), name=name)
    is_examples = _is_list_of_examples(data)
    if _is_array_like(data) and not is_examples:
        size = _require_batch_size(batch_size or default_batch_size, name, "arrays")
        return _ArrayStream(data, size, bool(shuffle), seed, name)
    # A tuple or a dict that is no arrays is a mistake, not a list of examples.
    has_index = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if is_examples or (has_index and not isinstance(data, (tuple, Mapping, str, bytes))):
        size = _require_batch_size(batch_size or default_batch_size, name, "single examples")
        return _SourceStream(data, size, bool(shuffle), seed, name)
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


def order(seed: int, epoch: int, num_examples: int) -> np.ndarray:
    """The order of the examples in a pass: a function of (seed, epoch)."""
    return np.random.default_rng([seed, epoch]).permutation(num_examples)


def _check_batch_size(batch_size: Any, meaning: str) -> None:
    if batch_size is None:
        return
    if isinstance(batch_size, bool) or not isinstance(batch_size, Integral) or batch_size < 1:
        raise KerasdistError(
            f"Received `batch_size={batch_size!r}`. Expected a whole number of at least 1: "
            f"{meaning}. Give for example `batch_size=128`."
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


class _ArrayStream(_TensorStream):
    def __init__(self, data: Any, batch_size: int, shuffle: bool, seed: int, name: str):
        self.arrays = as_arrays(tuple(data) if isinstance(data, list) else data, f"`{name}`")
        self._num_examples = check_rows(self.arrays, f"`{name}`")
        self.batch_size: int | None = batch_size
        self.num_batches: int | None = -(-self._num_examples // batch_size)
        self._shuffle, self._seed = shuffle, seed
        self._tensors: Any = None

    @property
    def element_spec(self) -> Any:
        return spec_of(self.arrays)

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

    def close(self) -> None:
        self._tensors = None


class _DatasetStream(_TensorStream):
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
    known = _PythonStream(lambda e, start: stream.open(e, start).as_numpy_iterator(), name=name)
    known.batch_size, known.num_batches = stream.batch_size, stream.num_batches
    known.is_endless = stream.is_endless
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
    while len(inputs := dataset._inputs()) == 1:
        kind = type(dataset).__name__
        if any(word in kind for word in ("FlatMap", "Interleave", "Unbatch", "Window")):
            return False
        if "Batch" in kind:
            return True
        (dataset,) = inputs
    return False


class _PythonStream:
    """Batches that Python makes, read in the background."""

    arrays = None
    batch_size: int | None = None
    num_batches: int | None = None
    is_endless = False
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

    @property
    def element_spec(self) -> Any:
        return self._reader.element_spec

    @property
    def last_change(self) -> tuple[str, Any]:
        return self._reader.last_change

    def open(self, epoch: int, start: int) -> tf.data.Dataset:
        if self.is_one_shot and epoch > 0:
            raise KerasdistError(
                f"Received `{self._name}`, a generator that can be read only once, and it ended "
                "before the training did. Expected a generator function, which gives a new "
                "generator for each epoch. Pass the function itself, not its result."
            )
        return self._reader.open(epoch, start)

    def reopen(self) -> tf.data.Dataset | None:
        return self._reader.reopen()

    def check(self) -> None:
        self._reader.check()

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
                where = f"examples {rows[0]} to {rows[-1]} (batch {first // batch_size} from 0)"
                yield _stack([as_arrays(e, f"{where} of `{name}`") for e in examples], where)

        super().__init__(make_batches, name=name)


def _stack(examples: list[Any], where: str) -> Any:
    try:
        return tf.nest.map_structure(lambda *values: np.stack(values), *examples)
    except (ValueError, TypeError):
        shapes = [tf.nest.map_structure(np.shape, e) for e in examples]
        other = next((s for s in shapes if s != shapes[0]), shapes[0])
        raise KerasdistError(
            f"Received {where} with fields of the shapes {other} and {shapes[0]}. Expected the "
            "same in all examples. Cut or fill them up in `__getitem__`."
        ) from None


class _PyDatasetStream(_PythonStream):
    def __init__(self, dataset: keras.utils.PyDataset, name: str):
        length = dataset.num_batches
        if length == 0:
            raise KerasdistError(
                f"Received `{name}`, a `keras.utils.PyDataset` with 0 batches. Expected at least "
                "one. Check its `__len__`."
            )
        self.num_batches = length
        self.is_endless = length is None

        def make_batches(epoch: int, start: int) -> Iterator[Any]:
            # Keras calls these around every pass.
            dataset.on_epoch_begin()
            i = start
            while length is None or i < length:
                yield dataset[i]
                i += 1
            dataset.on_epoch_end()

        super().__init__(make_batches, name=name)


class _ProviderStream(_PythonStream):
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
        _check_batch_size(source.batch_size, f"the examples that {kind!r} returns at a time")
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


def _call(function: Callable, epoch: int, start: int) -> Iterator[Any]:
    batches = function()
    if not hasattr(batches, "__iter__"):
        raise KerasdistError(
            f"Received as data a function that returned {type(batches).__name__}. Expected a "
            "generator function, which yields batches. Use `yield` in it."
        )
    return islice(batches, start, None) if start else iter(batches)
