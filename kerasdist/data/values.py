"""Checks the values of each batch while it is read: sizes, NaN, class numbers."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Sequence

import keras
import numpy as np
import tensorflow as tf

from kerasdist.data.batches import Batch
from kerasdist.errors import KerasdistError
from kerasdist.models.fields import fields_read, targets_read
from kerasdist.models.tensors.composites import count_rows, values_of
from kerasdist.models.value_checks import (
    AllowNan,
    Labels,
    label_message,
    not_finite_message,
    not_finite_warning,
    sizes_message,
)

# Stands around kerasdist's message in the longer message of a failed TensorFlow assertion.
_MARK = "kerasdist-check:"
_PLACE = "batch {} (from 0)"


def checker(
    model: keras.Model,
    labels: Sequence[Labels],
    name: str,
    *,
    allow_nan: AllowNan,
    is_cut: bool = True,
) -> Callable[[tf.Tensor, Batch], Batch]:
    """A function of a batch's number and a batch, which returns the batch if it is right.

    Class numbers are always checked, and the sizes of the fields if batches are cut into shards.
    With `allow_nan="warn"` the first NaN is a warning.
    """
    told = _Told()

    def check(number: tf.Tensor, batch: Batch) -> Batch:
        fields = fields_read(model, batch)
        checks = [_check_sizes(name, number, fields)] if fields and is_cut else []
        for path, tensor in () if allow_nan is True else fields:
            if not tensor.dtype.is_floating:
                continue
            finite = tf.reduce_all(tf.math.is_finite(values_of(tensor)))
            if allow_nan == "warn":
                checks.append(told.unless(finite, not_finite_warning(name, path, _PLACE), number))
            else:
                message = not_finite_message(name, path, _PLACE)
                checks.append(_assert(finite, message, (number,)))
        y = targets_read(model, batch)
        for label in labels if y is not None else ():
            checks.append(_check_label(name, number, label, label.of(y)))
        with tf.control_dependencies(checks):
            return tf.nest.map_structure(tf.identity, batch)

    return tf.autograph.experimental.do_not_convert(check)


class _Told:
    """Warns once, from a compiled function."""

    def __init__(self) -> None:
        self._is_told = False

    def unless(self, condition: tf.Tensor, message: str, number: tf.Tensor) -> tf.Tensor:
        """Warns if the condition does not hold. Python is called only then."""

        def warn(batch: int) -> np.ndarray:
            if not self._is_told:
                self._is_told = True
                warnings.warn(message.replace("{}", str(batch)), stacklevel=2)
            return np.zeros((), "bool")

        return tf.cond(
            condition, lambda: tf.constant(True), lambda: tf.numpy_function(warn, [number], tf.bool)
        )


def _check_sizes(
    name: str, number: tf.Tensor, fields: Sequence[tuple[str, tf.Tensor]]
) -> tf.Operation:
    sizes = tf.stack([count_rows(tensor, tf.int32) for _, tensor in fields])
    is_even = tf.reduce_all((sizes == sizes[0]) & (sizes > 0))
    message = sizes_message(name, ", ".join(path for path, _ in fields), "{}", _PLACE)
    return _assert(is_even, message, (sizes, number))


def _check_label(name: str, number: tf.Tensor, label: Labels, target: tf.Tensor) -> tf.Operation:
    values = tf.cast(target, tf.int64)
    wrong = (values < 0) | (values >= label.num_classes)
    if label.ignored is not None:
        wrong &= values != label.ignored
    message = label_message(name, label, "{}", _PLACE)
    first = tf.reduce_max(tf.where(wrong, values, tf.int64.min))
    return _assert(tf.logical_not(tf.reduce_any(wrong)), message, (first, number))


def _assert(condition: tf.Tensor, message: str, values: tuple[tf.Tensor, ...]) -> tf.Operation:
    text = tf.strings.format(f"{_MARK}{message}{_MARK}", values)
    return tf.debugging.Assert(condition, [text])


def translate(error: tf.errors.OpError) -> KerasdistError | None:
    """The message of a failed check; None if `error` is something else."""
    found = re.search(f"{_MARK}(.*?){_MARK}", str(error), re.DOTALL)
    return KerasdistError(found[1]) if found else None
