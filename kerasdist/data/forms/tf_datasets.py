"""`tf.data.Dataset`s, of single examples or of batches."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from kerasdist.data.batches import Spec
from kerasdist.data.forms.python_stream import PythonStream
from kerasdist.data.forms.tensor_stream import TensorStream
from kerasdist.devices.private_tensorflow import inputs_of
from kerasdist.errors import KerasdistError
from kerasdist.models.tensors.composites import is_composite

DEFAULT_SHUFFLE_BUFFER = 10_000


class DatasetStream(TensorStream):
    """Batches of a dataset. It is batched here if `batch_size` is given, else it has batches."""

    def __init__(self, dataset: tf.data.Dataset, batch_size: int | None, shuffle: int, seed: int):
        self._dataset = dataset
        self._shuffle, self._seed, self.batch_size = shuffle, seed, batch_size
        cardinality = int(dataset.cardinality())
        self.is_endless = cardinality == tf.data.INFINITE_CARDINALITY
        self.has_empty_epochs = cardinality == tf.data.UNKNOWN_CARDINALITY
        if cardinality >= 0:
            self.num_examples = cardinality if batch_size else None
            self.num_batches = -(-cardinality // batch_size) if batch_size else cardinality

    @property
    def element_spec(self) -> Spec:
        return self.open(0, 0).element_spec

    def open(self, epoch: int, start: int) -> tf.data.Dataset:
        dataset = self._dataset
        if self.batch_size is not None:
            if self._shuffle:
                dataset = _shuffled(dataset, self._shuffle, [self._seed, epoch])
            dataset = dataset.batch(self.batch_size)
        return dataset.skip(start) if start else dataset


def _shuffled(dataset: tf.data.Dataset, buffer: int, seeds: list[int]) -> tf.data.Dataset:
    """Shuffles by `seeds` alone; `Dataset.shuffle` also depends on `tf.random.set_seed`."""
    first, second = (int(word) for word in np.random.SeedSequence(seeds).generate_state(2))
    leaves = tf.nest.flatten(dataset.element_spec)
    variant = tf.raw_ops.ShuffleDataset(
        input_dataset=tf.data.experimental.to_variant(dataset),
        buffer_size=buffer,
        seed=first + 1,  # Two zeros would mean a random seed.
        seed2=second,
        # tf.data encodes a sparse or ragged tensor as one variant.
        output_types=[tf.variant if is_composite(leaf) else leaf.dtype for leaf in leaves],
        output_shapes=[None if is_composite(leaf) else leaf.shape for leaf in leaves],
        reshuffle_each_iteration=False,
    )
    return tf.data.experimental.from_variant(variant, dataset.element_spec)


def check_dataset(dataset: tf.data.Dataset, name: str) -> None:
    """Raises if a dataset has elements that are not tensors, or none."""
    for leaf in tf.nest.flatten(dataset.element_spec):
        if not isinstance(leaf, tf.TensorSpec) and not is_composite(leaf):
            raise KerasdistError(
                f"Received `{name}` with an element of {type(leaf).__name__}. Expected dense, "
                "sparse or ragged tensors. Convert the elements in a `map`."
            )
    if int(dataset.cardinality()) == 0:
        raise KerasdistError(
            f"Received `{name}`, a `tf.data.Dataset` with no elements. Expected at least one. "
            "Check the code that reads it."
        )


def dataset_stream(
    dataset: tf.data.Dataset, batch_size: int | None, shuffle: bool | int, seed: int, name: str
) -> DatasetStream | PythonStream:
    """The stream of a dataset that passed `check_dataset`."""
    buffer = 0
    if shuffle:
        buffer = DEFAULT_SHUFFLE_BUFFER if shuffle is True else int(shuffle)
        if int(dataset.cardinality()) > 0:
            buffer = min(buffer, int(dataset.cardinality()))
    stream = DatasetStream(dataset, batch_size, buffer, seed)
    if all(shape.rank is not None for shape in _shapes(dataset)):
        return stream
    # TensorFlow does not know the shapes: take them from the batches themselves.
    known = PythonStream(lambda e, start: stream.open(e, start).as_numpy_iterator(), name=name)
    known.batch_size, known.num_batches = stream.batch_size, stream.num_batches
    known.is_endless, known.has_empty_epochs = stream.is_endless, stream.has_empty_epochs
    return known


def _shapes(dataset: tf.data.Dataset) -> list[tf.TensorShape]:
    return [leaf.shape for leaf in tf.nest.flatten(dataset.element_spec)]


def has_examples(dataset: tf.data.Dataset) -> bool:
    """Whether elements cannot be batches: one is a scalar, or their first dimensions differ."""
    shapes = _shapes(dataset)
    sizes = {shape[0] for shape in shapes if shape.rank} - {None}
    return any(shape.rank == 0 for shape in shapes) or len(sizes) > 1


def has_batches(dataset: tf.data.Dataset) -> bool:
    """Whether elements are batches: of unknown size, or made by `batch(drop_remainder=True)`."""
    sizes = {shape[0] if shape.rank else 0 for shape in _shapes(dataset)}
    if len(sizes) != 1 or 0 in sizes:
        return False
    if None in sizes:
        return True
    # A known size alone proves nothing: an image and its mask have the same height.
    while len(inputs := inputs_of(dataset)) == 1:
        kind = type(dataset).__name__
        if any(word in kind for word in ("FlatMap", "Interleave", "Unbatch", "Window")):
            return False
        if "Batch" in kind:
            return True
        (dataset,) = inputs
    return False
