"""Sparse matrices of SciPy, sparse tensors and ragged tensors as the caller's data."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.models.tensors.composites import is_composite, map_values


def is_scipy_sparse(value: Any) -> bool:
    """Whether this is a sparse matrix or array of SciPy, which is not imported for it."""
    kind = type(value)
    return kind.__module__.startswith("scipy.sparse") and hasattr(value, "tocoo")


def as_composite(value: Any) -> Any:
    """The value as a sparse or ragged tensor with Keras's float type; None if it is neither."""
    if is_scipy_sparse(value):
        value = _from_scipy(value)
    if not is_composite(value):
        return None
    dtype = tf.as_dtype(value.dtype)
    if dtype.is_floating and dtype.size != 2:
        floats = tf.as_dtype(keras.config.floatx())
        value = map_values(lambda values: tf.cast(values, floats), value)
    return tf.sparse.reorder(value) if isinstance(value, tf.SparseTensor) else value


def _from_scipy(matrix: Any) -> tf.SparseTensor:
    matrix = matrix.tocoo()
    matrix.sum_duplicates()
    indices = np.stack(matrix.coords if hasattr(matrix, "coords") else (matrix.row, matrix.col), 1)
    return tf.SparseTensor(indices.astype("int64"), matrix.data, matrix.shape)
