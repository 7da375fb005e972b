"""What a served model tells of files: probabilities and the name of the class, from their bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from kerasdist.evaluation.classes import Classes
from kerasdist.model_files.served import Served
from kerasdist.models.contract import Model


def answers_of_files(
    served: Served, decode: Callable[[Any], Mapping[str, Any]], classes: Classes | None
) -> Callable[[tf.Tensor], dict[str, tf.Tensor]]:
    """A function for a graph: from the bytes of files to what `kerasdist predict` says of them.

    Args:
        served: The model.
        decode: Makes the model's features from a string tensor `[n]`.
        classes: The classes of a classifier. Without, the answers are the model's outputs.
    """

    def answer(contents: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = served.call(*_inputs(served, dict(decode(contents))))
        if classes is None or len(outputs) != 1:
            return dict(zip(served.output_names, outputs, strict=True))
        scores = _scores(classes, tf.cast(outputs[0], tf.float32))
        best = tf.argmax(scores, axis=-1)
        return {"class": tf.gather(tf.constant(classes.names), best), "probabilities": scores}

    return answer


def _inputs(served: Served, fields: dict[str, Any]) -> list[Any]:
    """The fields in the order of the model's inputs."""
    if len(fields) == 1 and not isinstance(served.model, Model):
        return keras.tree.flatten(fields)
    return [fields[spec.name] for spec in served.inputs]


def _scores(classes: Classes, outputs: tf.Tensor) -> tf.Tensor:
    """`Classes.scores` in a graph."""
    if classes.is_binary:
        second = tf.sigmoid(outputs) if classes.from_logits else outputs
        return tf.concat([1 - second, second], axis=-1)
    return tf.nn.softmax(outputs) if classes.from_logits else outputs
