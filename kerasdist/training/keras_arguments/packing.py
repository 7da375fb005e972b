"""Keras's `x`, `y`, `sample_weight`, `validation_split` and `validation_data` as one `data`."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from numbers import Real
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.data.batches import count_examples, whole_arrays
from kerasdist.data.forms.providers import Provider
from kerasdist.data.streams import is_arrays
from kerasdist.errors import KerasArgumentError


def packed(x: Any, y: Any, sample_weight: Any, *, data: Any = None) -> Any:
    """The data in one object. Without `y`, a tuple is `(x, y[, sample_weight])`."""
    if x is not None and data is not None:
        raise KerasArgumentError(
            "Received both `x` and `data`, which mean the same. Expected one of them. Leave one "
            "out."
        )
    x = data if x is None else x
    if x is None:
        raise KerasArgumentError(
            "Received no data. Expected arrays `x` and `y`, a `tf.data.Dataset`, a "
            "`keras.utils.PyDataset`, or another form of data. Call for example "
            "`kerasdist.fit(model, x, y)`; docs/data.md lists the forms."
        )
    refuse_path(x, "x" if data is None else "data")
    if y is None and sample_weight is None:
        return x
    if y is None:
        if isinstance(x, tuple) and len(x) == 2 and is_arrays(x):
            return (*x, _weights(x[1], sample_weight))
        _refuse_beside_source(x, "sample_weight", "the sample weights", sample_weight)
        raise KerasArgumentError(
            "Received `sample_weight` and no `y`. Expected the targets that the weights belong to. "
            "Pass `x`, `y` and `sample_weight`."
        )
    _refuse_beside_source(x, "y", "the targets", y)
    refuse_path(y, "y")
    if not is_rows(y):
        raise KerasArgumentError(
            f"Received `y` of type {type(y).__name__} beside arrays `x`. Expected an array of "
            "targets, one row per example. Convert `y`, for example with `np.asarray`."
        )
    return (x, y) if sample_weight is None else (x, y, _weights(y, sample_weight))


def is_rows(value: Any) -> bool:
    """Whether an `x` or `y` by itself is arrays. A list of tuples of numbers is one array then."""
    if isinstance(value, list) and value and all(isinstance(row, tuple) for row in value):
        return all(is_arrays(row) for row in value)
    return is_arrays(value)


def several_inputs(x: Any) -> Any:
    """As in Keras: without `y`, a tuple or list of arrays is several inputs."""
    return (x,) if isinstance(x, (tuple, list)) and is_rows(x) else x


def unpacked_validation(validation_data: Any) -> Any:
    """`validation_data` as Keras unpacks it: `x`, `(x,)`, `(x, y)` or `(x, y, sample_weight)`."""
    if not isinstance(validation_data, (tuple, list)):
        return validation_data
    if not 1 <= len(validation_data) <= 3:
        raise KerasArgumentError(
            f"Received `validation_data` with {len(validation_data)} items. Expected `x`, `(x,)`, "
            "`(x, y)` or `(x, y, sample_weight)`. Put several inputs into one list: "
            "`validation_data=([x1, x2], y)`."
        )
    x, y, sample_weight = (*validation_data, None, None)[:3]
    if y is None:  # Keras drops the weights then.
        return several_inputs(x)
    return packed(x, y, sample_weight)


def split(data: Any, fraction: Any) -> tuple[Any, Any]:
    """The first rows of arrays to train on, and the last `fraction` of them to validate on."""
    is_number = isinstance(fraction, Real) and not isinstance(fraction, bool)
    if not is_number or not 0 < float(fraction) < 1:
        raise KerasArgumentError(
            f"Received `validation_split={fraction!r}`. Expected a number of at least 0 and below "
            "1: the part of the data to validate on. Give for example `validation_split=0.2`."
        )
    if not is_arrays(data):
        raise KerasArgumentError(
            f"Received `validation_split={fraction}` with {source_title(data)}. Expected tensors "
            "or NumPy arrays: only these can be split. Split the data yourself, and pass the "
            "second part as `validation_data`."
        )
    arrays = whole_arrays((data,) if isinstance(data, list) else data, "`x`")
    count = count_examples(arrays, "`x`")
    border = math.floor(count * (1.0 - float(fraction)))
    if border in (0, count):
        raise KerasArgumentError(
            f"Received {count} examples and `validation_split={fraction}`, which leaves "
            f"{border} to train on. Expected at least one example on each side. Provide more data, "
            "or another `validation_split`."
        )
    return _rows(arrays, 0, border), _rows(arrays, border, count)


def _rows(arrays: Any, first: int, end: int) -> Any:
    return tf.nest.map_structure(lambda array: array[first:end], arrays)


def source_title(data: Any) -> str:
    """What a form of data that brings its own targets is called."""
    if isinstance(data, tf.data.Dataset):
        return "a `tf.data.Dataset`"
    if isinstance(data, keras.utils.PyDataset):
        return "a `keras.utils.PyDataset`"
    if isinstance(data, Provider) or hasattr(data, "get_batch_data"):
        return "a provider"
    if hasattr(data, "__next__"):
        return "a generator"
    if callable(data) and not hasattr(data, "__getitem__"):
        return "a generator function"
    return f"data of type {type(data).__name__}"


def _refuse_beside_source(x: Any, name: str, what: str, value: Any) -> None:
    """Only arrays have their targets and weights beside them, as in Keras."""
    if is_rows(x):
        return
    hint = ""
    if name == "y" and isinstance(value, (int, np.integer)) and not isinstance(value, bool):
        hint = f" Did you mean `epochs={value}`?"
    elif name == "y" and not is_rows(value):
        hint = " Did you mean `validation_data`?"
    source = source_title(x)
    raise KerasArgumentError(
        f"Received `{name}` together with {source} as `x`. Expected {what} as part of the data: "
        f"it yields `(x, y)` or `(x, y, sample_weight)`. Leave `{name}` out.{hint}"
    )


def refuse_path(value: Any, name: str) -> None:
    """Refuses the name of a file, or a list of names, where data belongs."""
    if isinstance(value, (list, tuple)) and value and all(map(_is_name, value)):
        what = f"`{name}`, a list of paths that begins with {str(value[0])!r}"
    elif isinstance(value, (str, bytes, os.PathLike)):
        text = os.fsdecode(value)
        kind = "a folder" if os.path.isdir(text) else "a path or text"
        what = f"`{name}={text!r}`, {kind}"
    else:
        return
    raise KerasArgumentError(
        f"Received {what}. Expected data. Read the files first, for example with `np.load`, "
        "`pandas.read_csv` or `keras.utils.image_dataset_from_directory`."
    )


def _is_name(value: Any) -> bool:
    """Whether this names a file. Texts can be examples, so they must name one that exists."""
    if isinstance(value, os.PathLike):
        return True
    return isinstance(value, str) and os.path.isfile(value)


def _weights(y: Any, sample_weight: Any) -> Any:
    """One array of weights for several targets counts for each of them, as in Keras."""
    if not _is_nested(y):
        return sample_weight
    if _is_nested(sample_weight):
        try:
            keras.tree.assert_same_structure(y, sample_weight)
        except (ValueError, TypeError):
            raise KerasArgumentError(
                "Received `sample_weight` with another structure than `y`. Expected one array of "
                "weights, or one for each target in the structure of `y`. Give the weights the "
                "same keys or positions as the targets."
            ) from None
        return sample_weight
    shape = np.shape(sample_weight)
    if len(shape) > 1 and shape[1:] != (1,):
        raise KerasArgumentError(
            f"Received one `sample_weight` of the shape {shape} for several targets. Expected one "
            "number per example. Pass one array of weights for each target instead."
        )
    return keras.tree.map_structure(lambda _: sample_weight, y)


def _is_nested(value: Any) -> bool:
    """Whether this is several arrays. A list of numbers is one."""
    if isinstance(value, (Mapping, tuple)):
        return True
    return isinstance(value, list) and any(len(getattr(item, "shape", ())) for item in value)
