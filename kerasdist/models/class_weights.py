"""Turns class weights into sample weights, as Keras does."""

from __future__ import annotations

from collections.abc import Mapping

import keras
import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.models.fields import Batch, Example, read


def weigh_batch(model: keras.Model, batch: Batch, class_weight: dict[int, float]) -> Batch:
    """A batch with sample weights for its classes, as a model's own step takes it."""
    example = weigh_classes(read(model, batch), class_weight)
    return example.x, example.y, example.sample_weight


def weighed_spec(model: keras.Model, spec: Batch, class_weight: dict[int, float]) -> Batch:
    """The spec of batches with sample weights for their classes."""

    def weigh(batch: Batch) -> Batch:
        return weigh_batch(model, batch, class_weight)

    found = tf.function(weigh, autograph=False).get_concrete_function(spec).structured_outputs
    return tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), found)


def weigh_classes(example: Example, class_weight: dict[int, float] | None) -> Example:
    """Multiplies each example's sample weight by the weight of its class."""
    if not class_weight:
        return example
    if isinstance(example.y, (Mapping, tuple, list)):
        raise KerasdistError(
            "Received `class_weight` for a model with several targets. Expected a single target, "
            "as in Keras. Pass `sample_weight` with one array for each target instead."
        )
    y = tf.convert_to_tensor(example.y)
    if y.shape.rank > 1 and y.shape[-1] != 1:
        y = tf.argmax(y, axis=-1)
    elif y.shape.rank > 1:
        y = tf.squeeze(y, axis=-1)
    table = [class_weight.get(i, 1.0) for i in range(max(class_weight) + 1)]
    # Classes beyond the table have the weight 1.
    if y.dtype.is_floating:
        y = tf.round(y)  # As Keras does: a float 0.9999999 is class 1.
    y = tf.cast(y, tf.int64)
    known = tf.minimum(y, len(table) - 1)
    weights = tf.gather(tf.constant(table, keras.config.floatx()), known)
    weights = tf.where(y < len(table), weights, tf.ones_like(weights))
    if example.sample_weight is not None:
        weights = weights * tf.cast(example.sample_weight, weights.dtype)
    return Example(example.args, example.x, example.y, weights)
