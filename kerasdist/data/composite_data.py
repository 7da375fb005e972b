"""Sparse matrices of SciPy and JAX, sparse tensors and ragged tensors as the caller's data."""

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


def is_jax_sparse(value: Any) -> bool:
    """Whether this is a `BCOO` of JAX, which is not imported for it. Each entry is one number."""
    kind = type(value)
    is_bcoo = kind.__module__.startswith("jax.experimental.sparse") and kind.__name__ == "BCOO"
    return is_bcoo and not value.n_batch and not value.n_dense


def as_composite(value: Any) -> Any:
    """The value as a sparse or ragged tensor with Keras's float type; None if it is neither."""
    if is_scipy_sparse(value):
        value = _from_scipy(value)
    elif is_jax_sparse(value):
        value = _from_jax(value)
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


def _from_jax(matrix: Any) -> tf.SparseTensor:
    matrix = matrix.sum_duplicates()
    indices, values = np.asarray(matrix.indices).astype("int64"), np.asarray(matrix.data)
    # JAX pads the entries with indices that lie outside of the matrix.
    is_inside = (indices < np.asarray(matrix.shape)).all(axis=1)
    return tf.SparseTensor(indices[is_inside], values[is_inside], matrix.shape)
