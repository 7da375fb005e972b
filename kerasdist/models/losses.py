"""A loss that Keras does not have: cross-entropy of class numbers with label smoothing."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf
from keras import ops


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
        y_pred = ops.convert_to_tensor(y_pred)
        # At least float32: half precision is too coarse for probabilities.
        wide = keras.backend.result_type(y_pred.dtype, "float32")
        logs = ops.log_softmax(ops.cast(y_pred, wide))
        classes = ops.shape(logs)[-1]
        target = ops.one_hot(ops.reshape(y_true, (-1,)), classes, dtype=logs.dtype)
        target = (1 - self.label_smoothing) * target + self.label_smoothing / classes
        return -ops.sum(target * logs, axis=-1)

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"label_smoothing": self.label_smoothing}
