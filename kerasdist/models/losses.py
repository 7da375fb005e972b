"""What a loss compares: a loss that Keras does not have, and checks of targets and inputs."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from kerasdist.errors import KerasdistError
from kerasdist.models.fields import Batch, read, targets_read


@keras.saving.register_keras_serializable("kerasdist")
class SmoothedCrossentropy(keras.losses.Loss):
    """Cross-entropy of logits with class numbers, with label smoothing.

    Args:
        label_smoothing: The part of a label that is spread over all classes equally.
        **kwargs: Arguments of every Keras loss.

    Example:
        >>> import kerasdist
        >>> loss = kerasdist.SmoothedCrossentropy(0.1)
        >>> round(float(loss([3], [[0.0] * 10])), 4)
        2.3026
    """

    from_logits = True

    def __init__(self, label_smoothing: float = 0.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.label_smoothing = label_smoothing

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        y_true, y_pred = ops.convert_to_tensor(y_true), ops.convert_to_tensor(y_pred)
        if len(y_true.shape) == len(y_pred.shape) and y_true.shape[-1] not in (1, None):
            raise ValueError(
                f"Received targets of the shape {tuple(y_true.shape)} for outputs of the shape "
                f"{tuple(y_pred.shape)}. Expected class numbers, one for each row"
            )
        # At least float32: half precision is too coarse for probabilities.
        wide = keras.backend.result_type(y_pred.dtype, "float32")
        logs = ops.log_softmax(ops.cast(y_pred, wide))
        classes = ops.shape(logs)[-1]
        target = ops.one_hot(ops.reshape(y_true, (-1,)), classes, dtype=logs.dtype)
        target = (1 - self.label_smoothing) * target + self.label_smoothing / classes
        return -ops.sum(target * logs, axis=-1)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"label_smoothing": self.label_smoothing}


# Losses that compare number by number. Keras repeats a single number to fit the other side.
_ELEMENTWISE = {
    getattr(keras.losses, name)
    for name in (
        "mean_squared_error",
        "mean_absolute_error",
        "mean_absolute_percentage_error",
        "mean_squared_logarithmic_error",
        "huber",
        "log_cosh",
        "poisson",
        "binary_crossentropy",
    )
}


def check_targets(model: keras.Model, y: Any, outputs: Any) -> None:
    """Targets and outputs must have one shape if the loss compares them number by number."""
    loss = getattr(model, "loss", None)
    if not isinstance(y, tf.TensorSpec) or not isinstance(outputs, tf.TensorSpec):
        return
    if isinstance(loss, (dict, list, tuple)) or loss is None:
        return
    loss = keras.losses.get(loss)
    if getattr(loss, "fn", loss) not in _ELEMENTWISE:
        return
    own, other = y.shape, outputs.shape
    if abs(own.rank - other.rank) == 1:  # Keras adds or removes a last dimension of 1.
        longer, shorter = (own, other) if own.rank > other.rank else (other, own)
        own, other = (longer[:-1], shorter) if longer[-1] in (1, None) else (longer, shorter)
    if own.rank != other.rank or not own[1:].is_compatible_with(other[1:]):
        raise KerasdistError(
            f"Received targets of the shape {tuple(y.shape)} for outputs of the shape "
            f"{tuple(outputs.shape)}. Expected the same: the loss compares number by number. "
            f"Change the data, or the model's last layer.{_class_hint(y.shape, outputs.shape)}"
        )


def _class_hint(targets: tf.TensorShape, outputs: tf.TensorShape) -> str:
    """The usual mistake: classes for a loss that compares numbers."""
    if outputs[-1] is None or outputs[-1] <= 1 or targets.rank >= outputs.rank:
        return ""
    return " If the targets are class numbers, use `keras.losses.SparseCategoricalCrossentropy`."


def input_hint(model: keras.Model, spec: Batch) -> str:
    """Says which shape the model's only input has, and the usual mistakes with it."""
    own: Any = getattr(model, "inputs", None) or ()
    found = tf.nest.flatten(read(model, spec, need_targets=False).x)
    if len(own) != 1 or len(found) != 1 or not isinstance(found[0], tf.TensorSpec):
        return ""
    wanted, given = own[0].shape, found[0].shape
    if given.rank is None or given.is_compatible_with(wanted):
        return ""
    text = f" The model's input has the shape {tuple(wanted)}, the data {tuple(given)}."
    sizes, got = list(wanted[1:]), list(given[1:])
    if None in sizes or None in got:
        return text
    if sizes == [*got, 1]:
        return f"{text} If the last axis is missing, add it: `x[..., np.newaxis]`."
    if len(sizes) == 3 and [*got[1:], got[0]] == sizes:
        return f"{text} If the channels come first, move them: `np.moveaxis(x, 1, -1)`."
    if math.prod(sizes) == math.prod(got):
        numbers = ", ".join(map(str, (-1, *sizes)))
        return f"{text} If the numbers are in the right order, use `x.reshape({numbers})`."
    return text


def loss_hint(model: keras.Model, spec: Batch) -> str:
    """The usual mistake: one-hot targets for a sparse loss, or class numbers for the other one."""
    y, loss = targets_read(model, spec), getattr(model, "loss", None)
    if not isinstance(y, tf.TensorSpec) or y.shape.rank is None:
        return ""
    name = loss if isinstance(loss, str) else getattr(loss, "__name__", type(loss).__name__)
    name = name.replace("_", "").lower()
    has_rows = y.shape.rank > 1 and y.shape[-1] != 1
    if name == "smoothedcrossentropy" and has_rows:
        return (
            " If the targets are one-hot, use `keras.losses.CategoricalCrossentropy(from_logits="
            "True, label_smoothing=...)`, or turn them into class numbers with "
            "`np.argmax(y, axis=-1)`."
        )
    if name == "sparsecategoricalcrossentropy" and has_rows:
        return (
            " If the targets are one-hot, use `keras.losses.CategoricalCrossentropy`, or turn them "
            "into class numbers with `np.argmax(y, axis=-1)`."
        )
    if name == "categoricalcrossentropy" and not has_rows:
        return (
            " If the targets are class numbers, use `keras.losses.SparseCategoricalCrossentropy`, "
            "or turn them into one-hot rows with `keras.utils.to_categorical(y)`."
        )
    if name == "binarycrossentropy":
        return (
            " A binary crossentropy compares number by number: the last layer needs as many units "
            "as a target has numbers. For classes that exclude each other, use "
            f"`keras.losses.{'' if has_rows else 'Sparse'}CategoricalCrossentropy`."
        )
    return ""
