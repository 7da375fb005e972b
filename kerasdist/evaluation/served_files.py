"""What a served model tells of files or raw values: probabilities and the name of the class."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.evaluation.classes import Classes
from kerasdist.model_files.served import Served
from kerasdist.models.contract import Model

# Of the largest value, on the average. Other ways of resizing and of decoding JPEGs stay far below.
MOST_OFF = 0.05
# Of more classes, only so many are named in a note.
_SHOWN = 20


def answers_of(
    served: Served, decode: Callable[..., Mapping[str, Any]], classes: Classes | None
) -> Callable[..., dict[str, tf.Tensor]]:
    """A function for a graph: from the bytes of files to what `kerasdist predict` says of them.

    Args:
        served: The model.
        decode: Makes the model's features from a string tensor `[n]`, or from raw values by name.
        classes: The classes of a classifier. Without, the answers are the model's outputs.
    """

    def answer(*contents: tf.Tensor, **named: tf.Tensor) -> dict[str, tf.Tensor]:
        outputs = served.call(*_inputs(served, dict(decode(*contents, **named))))
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


def logits_in_words(classes: Classes | None, signature: str | None) -> str | None:
    """What the outputs of a file are, if they are not what `kerasdist predict` says; or None.

    Args:
        classes: The classes of a classifier; None for another model.
        signature: A signature of the file that gives probabilities, if it has one.

    Example:
        >>> logits_in_words(Classes(("cat", "dog"), from_logits=True), None)
        'logits of cat, dog (in this order), not probabilities: apply a softmax'
    """
    if classes is None or not classes.from_logits:
        return None
    names = classes.names
    if classes.is_binary:
        what, function = (
            f"the logit of {names[1]} (not of {names[0]}), not a probability",
            "sigmoid",
        )
    else:
        more = f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""
        listed = ", ".join(names[:_SHOWN]) + more
        what, function = f"logits of {listed} (in this order), not probabilities", "softmax"
    gives = "" if signature is None else f", or use {signature}, which gives probabilities"
    return f"{what}: apply a {function}{gives}"


def careful_with_files(
    decode: Callable[[Any], Mapping[str, Any]],
    read: Callable[[list[Path]], Mapping[str, np.ndarray]],
    paths: Sequence[Path],
) -> str | None:
    """What to say if a graph makes something else of some files than training does; or None.

    Args:
        decode: Makes the model's features in a graph, from the bytes of files.
        read: Makes them from files, as for the training.
        paths: Files to compare on. Those that `read` refuses are left out.
    """
    contents = tf.TensorSpec([None], tf.string)
    graph = tf.function(decode, input_signature=[contents], autograph=False)
    others = []
    for path in paths:
        try:
            expected = read([path])
        except KerasdistError:
            continue
        try:
            found = graph(tf.constant([path.read_bytes()]))
        except tf.errors.OpError:
            others.append(f"{path} cannot be decoded there")
            continue
        off = max(_distance(expected[name], found[name].numpy()) for name in expected)
        if off > MOST_OFF:
            others.append(f"{path} differs by {off:.0%}")
    if not others:
        return None
    return (
        f"serve_files makes something else of {len(others)} of {len(paths)} example files than "
        f"training did: {others[0]}. Convert such files, for example to PNG or 16-bit WAV, before "
        "they are served"
    )


def _distance(expected: np.ndarray, found: np.ndarray) -> float:
    """The mean difference of two arrays, as a part of the largest value."""
    if expected.shape != found.shape:
        return 1.0
    both = np.stack([expected, found]).astype(np.float64)
    return float(np.abs(both[0] - both[1]).mean() / max(np.abs(both).max(), 1e-9))
