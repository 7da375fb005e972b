"""Turns a batch into arrays, and checks its types, its sizes and its fields."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Integral
from typing import Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from kerasdist.errors import KerasdistError

# A structure of `tf.nest`: an array or tensor, or tuples and dicts of them.
Batch: TypeAlias = Any
# The same structure with a `tf.TensorSpec` for each array.
Spec: TypeAlias = Any
# The way from the top of a batch to one of its arrays.
_Path: TypeAlias = tuple[Any, ...]


def whole_arrays(data: Batch, where: str = "`data`") -> Batch:
    """Converts data in memory to arrays. As in `model.fit`, a pandas `Series` is a column."""
    return as_arrays(_without_pandas(data), where)


def _without_pandas(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_pandas(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return tuple(_without_pandas(item) for item in value)
    if isinstance(value, list) and any(len(getattr(item, "shape", ())) for item in value):
        return [_without_pandas(item) for item in value]
    kinds = {kind.__name__ for kind in type(value).__mro__ if kind.__module__.startswith("pandas")}
    if "Series" in kinds:
        return value.to_numpy()[:, None]
    if "DataFrame" in kinds and any(kind.kind == "f" for kind in value.dtypes):
        return value.astype(keras.config.floatx()).to_numpy()
    return value


def as_arrays(batch: Batch, where: str = "`data`") -> Batch:
    """Converts the leaves of a batch to arrays. As in `model.fit`, floats get Keras's type."""
    if isinstance(batch, (tuple, list)):
        while len(batch) > 1 and batch[-1] is None:  # Keras users write (x, y, None).
            batch = batch[:-1]
    return _as_arrays(batch, where, ())


def _as_arrays(value: Any, where: str, path: _Path) -> Batch:
    if isinstance(value, Mapping):
        return {key: _as_arrays(item, where, (*path, key)) for key, item in value.items()}
    # As in Keras, a list of arrays is several fields; a list of numbers or lists is one array.
    if isinstance(value, tuple) or (
        isinstance(value, list) and any(len(getattr(item, "shape", ())) for item in value)
    ):
        return tuple(_as_arrays(item, where, (*path, i)) for i, item in enumerate(value))
    return _as_array(value, where, path)


def _as_array(value: Any, where: str, path: _Path) -> np.ndarray:
    if path:
        where = f"{where} ({'/'.join(str(key) for key in path)})"
    try:
        array = np.asarray(value)
    except ValueError:
        raise KerasdistError(
            f"The rows in {where} have different lengths. Expected an array, whose rows all have "
            "the same length. Pad the shorter rows, for example with `keras.utils.pad_sequences`."
        ) from None
    if array.dtype.kind == "f" and array.dtype.itemsize != 2:
        return array.astype(keras.config.floatx(), copy=False)
    if array.dtype.kind == "O":
        # Strings pass here. If the model reads them, a later check names the field; if not, they
        # do no harm.
        odd = [v for v in array.flat if not isinstance(v, (str, bytes))]
        found = type(odd[0]).__name__ if odd else None
    else:
        found = None if _is_known(array.dtype) else str(array.dtype)
    if found is not None:
        raise KerasdistError(
            f"Received values of the type {found} in {where}. Expected numbers. Convert the values "
            "to numbers, or remove the field."
        )
    return array


def _is_known(dtype: np.dtype) -> bool:
    try:
        return bool(tf.as_dtype(dtype))
    except TypeError:
        return False


def count_examples(arrays: Batch, where: str = "`data`") -> int:
    """The number of examples. Raises if the arrays disagree or are empty."""
    sizes = {len(a) if a.ndim else -1 for a in tf.nest.flatten(arrays)}
    if len(sizes) != 1 or -1 in sizes:
        shapes = tf.nest.map_structure(lambda a: a.shape, arrays)
        raise KerasdistError(
            f"Received {where} with arrays of shapes {shapes}. Expected the same first dimension "
            "in all of them: the number of examples. Cut the arrays to the same length."
        )
    (size,) = sizes
    if size == 0:
        raise no_examples(where)
    return size


def no_examples(where: str) -> KerasdistError:
    """The error for data that is empty."""
    return KerasdistError(
        f"Received {where} with 0 examples. Expected at least one. Check the code that reads it."
    )


def check_batch_size(batch_size: Any, meaning: str) -> None:
    """Raises unless `batch_size` is None or a whole number of at least 1."""
    if batch_size is None:
        return
    if isinstance(batch_size, bool) or not isinstance(batch_size, Integral) or batch_size < 1:
        raise KerasdistError(
            f"Received `batch_size={batch_size!r}`. Expected a whole number of at least 1: "
            f"{meaning}. Pass for example `batch_size=128`."
        )


def spec_of(batch: Batch) -> Spec:
    """The spec of batches like this one, with any number of examples."""
    return tf.nest.map_structure(
        lambda array: tf.TensorSpec([None, *array.shape[1:]], _dtype(array)), batch
    )


def _dtype(array: np.ndarray) -> tf.DType:
    return tf.string if array.dtype.kind in "OUS" else tf.as_dtype(array.dtype)


def relaxed_spec(spec: Spec, batch: Batch, where: str) -> Spec | None:
    """None if `batch` fits `spec`, else `spec` with None for each dimension that differs."""
    try:
        tf.nest.assert_same_structure(spec, batch)
    except (ValueError, TypeError):
        raise KerasdistError(
            f"Received {_fields(batch)} in {where} after {_fields(spec)}. Expected the same fields "
            "in every batch. Yield all fields in each batch."
        ) from None
    changed = False

    def leaf(own: tf.TensorSpec, array: np.ndarray) -> tf.TensorSpec:
        nonlocal changed
        if len(array.shape) != own.shape.rank:
            raise KerasdistError(
                f"Received an array of shape {array.shape} in {where} after one of shape "
                f"{tuple(own.shape)}. Expected the same number of dimensions in every batch. "
                "Reshape the array."
            )
        if own.dtype != _dtype(array):
            raise KerasdistError(
                f"Received an array of type {array.dtype} in {where} after one of type "
                f"{own.dtype.name}. Expected the same type in every batch. Cast the array."
            )
        if own.shape.is_compatible_with(array.shape):
            return own
        changed = True
        sizes = [a if a == b else None for a, b in zip(own.shape, array.shape, strict=True)]
        return tf.TensorSpec(sizes, own.dtype)

    relaxed = tf.nest.map_structure(leaf, spec, batch)
    return relaxed if changed else None


def _fields(structure: Any) -> str:
    if isinstance(structure, Mapping):
        return f"the fields {sorted(structure, key=str)}"
    return f"{len(structure)} positions" if isinstance(structure, tuple) else "one array"
