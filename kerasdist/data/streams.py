"""Finds out which form `data` has, and opens it as a stream of batches."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any, Protocol

import keras
import numpy as np
import tensorflow as tf

from kerasdist.data.batches import (
    Batch,
    Spec,
    check_batch_size,
    count_examples,
    no_examples,
    whole_arrays,
)
from kerasdist.data.composite_data import is_jax_sparse, is_scipy_sparse
from kerasdist.data.forms import tf_datasets
from kerasdist.data.forms.arrays import WITHIN_BATCHES, ArrayStream
from kerasdist.data.forms.examples import ExampleStream
from kerasdist.data.forms.generators import function_stream, generator_stream, replayed_stream
from kerasdist.data.forms.loaders import loader_stream
from kerasdist.data.forms.providers import Provider, ProviderStream
from kerasdist.data.forms.py_datasets import PyDatasetStream
from kerasdist.data.forms.sequences import Sequences, SequenceStream
from kerasdist.data.rows import Rows
from kerasdist.devices.placement import Share
from kerasdist.errors import KerasdistError
from kerasdist.models.tensors.composites import is_composite

# What Keras takes for arrays if nothing else says how large a batch is.
KERAS_BATCH_SIZE = 32


class Stream(Protocol):
    """Passes over the data, in global batches. Every form of data has one of these."""

    arrays: Batch  # The whole data if it is in memory: it is checked before anything is compiled.
    is_endless: bool
    is_one_shot: bool
    has_empty_epochs: bool  # As in Keras, an epoch that begins at the end of a pass has no steps.
    is_forward_only: bool  # A batch cannot be read a second time.
    num_threads: int
    read_ahead: int  # How many batches tf.data may keep ready.

    @property
    def batch_size(self) -> int | None: ...

    @property
    def num_batches(self) -> int | None: ...

    @property
    def num_examples(self) -> int | None: ...

    @property
    def last_change(self) -> tuple[str, Spec]:
        """The batch whose shape changed last, for messages, and its spec."""
        ...

    @property
    def element_spec(self) -> Spec:
        """The spec of a batch; None if there is no batch."""
        ...

    def first_batch(self) -> Batch:
        """Looks at the first batch, which `open` still returns afterwards."""
        ...

    def take_share(self, share: Share) -> bool:
        """Whether the stream reads only a worker's rows of each batch from now on."""
        ...

    def open(self, epoch: int, start: int) -> tf.data.Dataset:
        """The batches of a pass, from batch `start` on."""
        ...

    def rows(self, epoch: int, start: int) -> Rows | None:
        """The same batches for the compiled loop to slice by itself; None if it should not."""
        ...

    def reopen(self) -> tf.data.Dataset | None:
        """The rest of a pass whose dataset ended because a shape changed, else None."""
        ...

    def check(self) -> None:
        """Raises an error of the background threads."""
        ...

    def close(self) -> None:
        """Ends the background threads and frees memory."""
        ...


def open_stream(
    data: Any,
    *,
    batch_size: int | None = None,
    shuffle: bool | int | str = False,
    seed: int = 0,
    name: str = "data",
    default_batch_size: int | None = None,
    steps: int | None = None,
) -> Stream:
    """Opens data of any form. Forms without batches use `default_batch_size` if none is given.

    Arrays always have a default, as in Keras: as many examples as make `steps` batches, or 32.
    """
    check_batch_size(batch_size, "the number of examples per step, over all devices")
    _check_shuffle(shuffle)
    if isinstance(data, tf.data.Dataset):
        return _open_dataset(data, batch_size, shuffle, seed, name)
    stream: Stream | None = loader_stream(data, batch_size, bool(shuffle), seed, name)
    if stream is None:
        stream = _open_batches(data, batch_size, bool(shuffle), seed, name, steps)
    if stream is None and is_arrays(data):
        stream = _open_arrays(data, batch_size, shuffle, seed, name, steps, default_batch_size)
    if stream is None:
        size = batch_size or default_batch_size
        stream = _open_unbatched(data, size, shuffle, seed, name)
    if stream is None:
        raise _unknown_form(data, name)
    return stream


def is_arrays(data: Any) -> bool:
    """Whether `data` is an array, or arrays in tuples, lists and dicts: one row per example."""
    if isinstance(data, (Sequences, Provider, keras.utils.PyDataset)):
        return False
    return _is_array_like(data) and not _is_list_of_examples(data)


def _check_shuffle(shuffle: Any) -> None:
    is_number = isinstance(shuffle, (bool, np.bool_, Integral)) and int(shuffle) >= 0
    if not is_number and not (isinstance(shuffle, str) and shuffle == WITHIN_BATCHES):
        raise KerasdistError(
            f"Received `shuffle={shuffle!r}`. Expected True, False, 'batch' for arrays, or for a "
            "`tf.data.Dataset` of examples the size of the buffer. Pass for example "
            "`shuffle=10000`."
        )


def _open_dataset(
    dataset: tf.data.Dataset,
    batch_size: int | None,
    shuffle: bool | int | str,
    seed: int,
    name: str,
) -> Stream:
    tf_datasets.check_dataset(dataset, name)
    if isinstance(shuffle, str):
        if batch_size is not None:
            raise _within_batches(name)
        shuffle = False  # A dataset of batches keeps its order anyway.
    if batch_size is None and tf_datasets.has_examples(dataset):
        _require_batch_size(None, name, "single examples")
    if batch_size is not None and tf_datasets.has_batches(dataset):
        _refuse_second_batch_size(batch_size, name, "a `tf.data.Dataset` of batches")
    return tf_datasets.dataset_stream(dataset, batch_size, shuffle, seed, name)


def _open_batches(
    data: Any, batch_size: int | None, shuffle: bool, seed: int, name: str, steps: int | None
) -> Stream | None:
    """The stream of a form that makes batches itself; None for other forms."""
    if isinstance(data, keras.utils.PyDataset):
        _refuse_second_batch_size(batch_size, name, "a `keras.utils.PyDataset`")
        return PyDatasetStream(data, shuffle, seed, name)
    if isinstance(data, Provider) or hasattr(data, "get_batch_data"):
        provider = data if isinstance(data, Provider) else Provider(data)
        _refuse_second_batch_size(batch_size, name, "a provider")
        return ProviderStream(provider, name)
    if isinstance(data, Sequences) or hasattr(data, "__getitem__"):
        return None
    if hasattr(data, "__next__"):
        _refuse_second_batch_size(batch_size, name, "a generator")
        is_replayed = name == "validation_data"
        return replayed_stream(data, name, steps) if is_replayed else generator_stream(data, name)
    if callable(data):
        _refuse_second_batch_size(batch_size, name, "a generator function")
        return function_stream(data, name)
    return None


def _open_arrays(
    data: Any,
    batch_size: int | None,
    shuffle: bool | int | str,
    seed: int,
    name: str,
    steps: int | None,
    default_batch_size: int | None,
) -> Stream:
    if isinstance(data, list):
        # A list holds several inputs, and a tuple is (x, y[, sample_weight]). In `validation_data`
        # Keras takes a list for such a tuple, too.
        data = tuple(data) if name == "validation_data" else (data,)
    arrays = whole_arrays(data, f"`{name}`")
    size = batch_size or default_batch_size or KERAS_BATCH_SIZE
    if batch_size is None and steps is not None:
        size = -(-count_examples(arrays, f"`{name}`") // steps)
    mode = shuffle if isinstance(shuffle, str) else bool(shuffle)
    return ArrayStream(arrays, int(size), mode, seed, name)


def _open_unbatched(
    data: Any, batch_size: int | None, shuffle: bool | int | str, seed: int, name: str
) -> Stream | None:
    """The stream of a form that needs `batch_size`; None for other forms."""
    if isinstance(shuffle, str):
        raise _within_batches(name)
    if isinstance(data, Sequences):
        size = _require_batch_size(batch_size, name, "sequences")
        return SequenceStream(data, size, bool(shuffle), seed)
    is_examples = _is_list_of_examples(data)
    # A tuple or dict of something else than arrays is a mistake, not a list of examples.
    has_index = hasattr(data, "__len__") and hasattr(data, "__getitem__")
    if is_examples or (has_index and not isinstance(data, (tuple, Mapping, str, bytes))):
        size = _require_batch_size(batch_size, name, "single examples")
        return ExampleStream(data, size, bool(shuffle), seed, name)
    return None


def _within_batches(name: str) -> KerasdistError:
    return KerasdistError(
        f"Received `shuffle='batch'` with `{name}`, which is not arrays. Expected arrays, whose "
        "rows are then shuffled within each batch. Use `shuffle=True` or `shuffle=False`."
    )


def _unknown_form(data: Any, name: str) -> KerasdistError:
    is_structure = isinstance(data, (tuple, Mapping))
    if is_structure and not data:
        return no_examples(f"`{name}`")
    what = _kinds(data) if is_structure else f"type {type(data).__name__}"
    return KerasdistError(
        f"Received `{name}` of {what}. Expected arrays, a `tf.data.Dataset`, an object with "
        "`__len__` and `__getitem__`, a `keras.utils.PyDataset`, a provider with "
        "`get_batch_data()`, a torch or grain loader, or a generator function. Convert the data to "
        "one of these."
    )


def _require_batch_size(batch_size: int | None, name: str, what: str) -> int:
    if batch_size is None:
        raise KerasdistError(
            f"Received `{name}` made of {what} and no `batch_size`. Expected the number of "
            "examples per step, over all devices. Pass for example `batch_size=128`."
        )
    return int(batch_size)


def _refuse_second_batch_size(batch_size: int | None, name: str, what: str) -> None:
    if batch_size is not None:
        raise KerasdistError(
            f"Received `batch_size={batch_size}` with `{name}`, {what}, which already has "
            "batches. Expected the batch size in one place. Leave `batch_size` out."
        )


def _is_array_like(data: Any) -> bool:
    if isinstance(data, Mapping):
        return bool(data) and all(_is_array_like(value) for value in data.values())
    if isinstance(data, (tuple, list)):
        return len(data) > 0 and (
            all(isinstance(v, (int, float, np.generic, str, bytes)) for v in data)
            or all(v is None or _is_array_like(v) for v in data)
        )
    if isinstance(data, np.ndarray) or tf.is_tensor(data) or hasattr(data, "__array__"):
        return True
    return is_composite(data) or is_scipy_sparse(data) or is_jax_sparse(data)


def _is_list_of_examples(data: Any) -> bool:
    """Whether `data` is `[(x, y), ...]` or `[{...}, ...]`; arrays come in a tuple or a dict."""
    return (
        isinstance(data, list)
        and len(data) > 0
        and (all(isinstance(v, Mapping) for v in data) or all(isinstance(v, tuple) for v in data))
    )


def _kinds(data: Any) -> str:
    pairs = data.items() if isinstance(data, Mapping) else enumerate(data)
    return ", ".join(f"{key!r}: {type(value).__name__}" for key, value in pairs)
