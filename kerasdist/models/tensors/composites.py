"""Rows of tensors of any kind: dense, sparse (`tf.SparseTensor`) and ragged (`tf.RaggedTensor`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from kerasdist.errors import KerasdistError

# A dense, sparse or ragged tensor. TensorFlow has no type for all of them.
AnyTensor: TypeAlias = Any
Number: TypeAlias = tf.Tensor | int


def is_sparse(tensor: AnyTensor) -> bool:
    """Whether this is a `tf.SparseTensor`, or the spec of one."""
    return isinstance(tensor, (tf.SparseTensor, tf.SparseTensorSpec))


def is_ragged(tensor: AnyTensor) -> bool:
    """Whether this is a `tf.RaggedTensor`, or the spec of one."""
    return isinstance(tensor, (tf.RaggedTensor, tf.RaggedTensorSpec))


def is_composite(tensor: AnyTensor) -> bool:
    return is_sparse(tensor) or is_ragged(tensor)


def as_tensor(value: AnyTensor) -> AnyTensor:
    """`tf.convert_to_tensor`, which sparse and ragged tensors pass as they are."""
    return value if is_composite(value) else tf.convert_to_tensor(value)


def count_rows(tensor: AnyTensor, out_type: tf.DType = tf.int64) -> tf.Tensor:
    """The number of examples in a tensor."""
    if is_sparse(tensor):
        return tf.cast(tensor.dense_shape[0], out_type)
    if is_ragged(tensor):
        return tf.cast(tensor.nrows(), out_type)
    return tf.shape(tensor, out_type=out_type)[0]


def rows_of(tensor: AnyTensor, begin: Number, end: Number) -> AnyTensor:
    """The rows from `begin` up to `end`.

    Example:
        >>> import tensorflow as tf
        >>> sparse = tf.sparse.from_dense([[1, 0], [0, 2], [3, 0]])
        >>> tf.sparse.to_dense(rows_of(sparse, 1, 3)).numpy().tolist()
        [[0, 2], [3, 0]]
        >>> rows_of(tf.ragged.constant([[1], [2, 3], []]), 1, 3).to_list()
        [[2, 3], []]
    """
    if isinstance(tensor, SparseRows):
        return tensor.slice(begin, end)
    if not is_sparse(tensor):
        return tensor[begin:end]
    first, last = tf.cast(begin, tf.int64), tf.cast(end, tf.int64)
    rows = tensor.indices[:, 0]
    taken = tf.sparse.retain(tensor, (rows >= first) & (rows < last))
    moved = tf.concat([taken.indices[:, :1] - first, taken.indices[:, 1:]], axis=1)
    return _sparse(moved, taken.values, last - first, tensor)


def gather_rows(tensor: AnyTensor, rows: tf.Tensor) -> AnyTensor:
    """The rows with these numbers, in this order."""
    tensor = SparseRows.of(tensor) if is_sparse(tensor) else tensor
    return tensor.gather(rows) if isinstance(tensor, SparseRows) else tf.gather(tensor, rows)


def by_row(array: AnyTensor) -> AnyTensor:
    """An array or tensor as one whose rows are taken quickly."""
    return SparseRows.of(array) if is_sparse(array) else as_tensor(array)


@dataclass(frozen=True)
class SparseRows:
    """A sparse tensor whose rows are found without a search through all entries.

    `values` and `places` have the entries of each row, and their places in the row.
    """

    values: tf.RaggedTensor
    places: tf.RaggedTensor
    like: tf.SparseTensor

    @classmethod
    def of(cls, tensor: tf.SparseTensor) -> SparseRows:
        tensor = tf.sparse.reorder(tensor)
        number, rows = tensor.dense_shape[0], tensor.indices[:, 0]

        def by_row(parts: tf.Tensor) -> tf.RaggedTensor:
            return tf.RaggedTensor.from_value_rowids(parts, rows, number, validate=False)

        return cls(by_row(tensor.values), by_row(tensor.indices[:, 1:]), tensor)

    def gather(self, rows: tf.Tensor) -> tf.SparseTensor:
        return self._joined(tf.gather(self.values, rows), tf.gather(self.places, rows))

    def slice(self, begin: Number, end: Number) -> tf.SparseTensor:
        return self._joined(self.values[begin:end], self.places[begin:end])

    def _joined(self, values: tf.RaggedTensor, places: tf.RaggedTensor) -> tf.SparseTensor:
        rows = tf.cast(values.value_rowids(), tf.int64)
        indices = tf.concat([rows[:, None], places.values], axis=1)
        return _sparse(indices, values.values, values.nrows(), self.like)


def _sparse(
    indices: tf.Tensor, values: tf.Tensor, number: tf.Tensor, like: tf.SparseTensor
) -> tf.SparseTensor:
    shape = tf.concat([[tf.cast(number, tf.int64)], like.dense_shape[1:]], axis=0)
    made = tf.SparseTensor(indices, values, shape)
    made.set_shape([None, *like.shape[1:]])  # Layers ask for the sizes while they are traced.
    return made


def map_values(function: Callable[[tf.Tensor], tf.Tensor], tensor: AnyTensor) -> AnyTensor:
    """Applies a function to the numbers of a tensor of any kind."""
    if is_sparse(tensor):
        return tensor.with_values(function(tensor.values))
    if is_ragged(tensor):
        return tensor.with_flat_values(function(tensor.flat_values))
    return function(tensor)


def values_of(tensor: AnyTensor) -> tf.Tensor:
    """The numbers of a tensor of any kind."""
    if is_sparse(tensor):
        return tensor.values
    return tensor.flat_values if is_ragged(tensor) else tensor


def spec_of_rows(tensor: AnyTensor) -> tf.TypeSpec:
    """The spec of a tensor, for any number of examples."""
    return with_shape(tf.type_spec_from_value(tensor), [None, *tensor.shape[1:]])


def with_shape(spec: tf.TypeSpec, shape: Any) -> tf.TypeSpec:
    """The same spec with another shape."""
    if is_sparse(spec):
        return tf.SparseTensorSpec(shape, spec.dtype)
    if is_ragged(spec):
        return tf.RaggedTensorSpec(shape, spec.dtype, spec.ragged_rank, spec.row_splits_dtype)
    return tf.TensorSpec(shape, spec.dtype)


def described(spec: tf.TypeSpec) -> str:
    """The kind, type and shape of a tensor, for messages."""
    kind = "sparse " if is_sparse(spec) else "ragged " if is_ragged(spec) else ""
    return f"{kind}{spec.dtype.name}{tuple(spec.shape)}"


def as_result(tensor: AnyTensor, number: int) -> AnyTensor:
    """The first rows of a computed tensor: an array, or a sparse or ragged tensor as in Keras."""
    return rows_of(tensor, 0, number) if is_composite(tensor) else tensor.numpy()[:number]


def concatenated(parts: tuple[AnyTensor, ...]) -> AnyTensor:
    """All rows of some results."""
    if len(parts) == 1:
        return parts[0]
    if is_sparse(parts[0]):
        return tf.sparse.concat(0, list(parts))
    return tf.concat(parts, axis=0) if is_ragged(parts[0]) else np.concatenate(parts)


def only_dense(result: AnyTensor) -> np.ndarray:
    """The result of a prediction, where only arrays can be joined."""
    if is_composite(result):
        kind = "sparse" if is_sparse(result) else "ragged"
        raise KerasdistError(
            f"The model returns a {kind} tensor, and several workers predict. Expected arrays: "
            f"workers cannot join {kind} tensors. Predict in one process, or return a dense "
            "tensor."
        )
    return result
