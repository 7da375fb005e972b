"""Interprets a model's outputs and targets as classes and probabilities, or as plain values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.models import pure
from kerasdist.models.fields import read, targets_read

_CATEGORICAL = {
    keras.losses.sparse_categorical_crossentropy,
    keras.losses.categorical_crossentropy,
    keras.losses.categorical_focal_crossentropy,
}
_BINARY = {keras.losses.binary_crossentropy, keras.losses.binary_focal_crossentropy}
# How far probabilities may be from a sum of 1; enough for half precision.
_SLACK = 1e-2


@dataclass(frozen=True)
class Classes:
    """The classes of a classifier, and how its outputs and targets express them.

    Attributes:
        names: A name per class.
        is_binary: Whether the model has a single output: the probability of the second class.
        from_logits: Whether outputs need a softmax (or a sigmoid) to become probabilities.
        one_hot: Whether targets have one number per class instead of a class number.
    """

    names: tuple[str, ...]
    is_binary: bool = False
    from_logits: bool = False
    one_hot: bool = False

    def scores(self, outputs: np.ndarray) -> np.ndarray:
        """Probabilities `[n, classes]`; the outputs unchanged if the loss has no `from_logits`.

        Example:
            >>> import numpy as np
            >>> Classes(("cat", "dog"), from_logits=True).scores(np.zeros((1, 2))).tolist()
            [[0.5, 0.5]]
        """
        outputs = np.asarray(outputs, np.float64)
        if self.is_binary:
            second = 0.5 * (1 + np.tanh(outputs / 2)) if self.from_logits else outputs
            return np.concatenate([1 - second, second], axis=-1)
        if not self.from_logits:
            return outputs
        powers = np.exp(outputs - outputs.max(axis=-1, keepdims=True))
        return np.asarray(powers / powers.sum(axis=-1, keepdims=True))

    def labels(self, targets: Any) -> tf.Tensor | None:
        """The class number of each example; None if the targets are not labels.

        Example:
            >>> import numpy as np
            >>> classes = Classes(("cat", "dog"), one_hot=True)
            >>> classes.labels(np.array([[0.0, 1.0], [1.0, 0.0]])).numpy().tolist()
            [1, 0]
        """
        flat = tf.nest.flatten(targets)
        if len(flat) != 1 or flat[0] is None:
            return None
        y = tf.convert_to_tensor(flat[0])
        if self.is_binary and y.dtype.is_floating:
            # Soft labels, too: the class that is more likely. No class, if it is no probability.
            y = tf.where((y >= 0) & (y <= 1), tf.cast(y > 0.5, tf.int64), -1)
        if is_class_number(y) or (self.is_binary and y.shape.rank in (1, 2)):
            return tf.cast(tf.reshape(y, (-1,)), tf.int64)
        if self.one_hot and y.shape.rank == 2 and y.shape[-1] == len(self.names):
            return tf.argmax(y, axis=-1)
        return None


def classes_of(
    model: keras.Model, outputs: Any, targets: Any, names: Sequence[str] | None
) -> Classes | None:
    """The classes of a model; None if it is not a classifier.

    A classifier has one output `[n, classes]`. Also, its targets are whole numbers, or its loss is
    a crossentropy, or the recipe has a name for each output. With a binary crossentropy, several
    outputs are independent of each other: any number of them may be right for an example.

    Args:
        model: A compiled model.
        outputs: `tf.TensorSpec` of its outputs.
        targets: `tf.TensorSpec` of its targets; None if they are unknown.
        names: The recipe's names of the classes.
    """
    if not isinstance(outputs, tf.TensorSpec) or outputs.shape.rank != 2 or not outputs.shape[-1]:
        return None
    width = int(outputs.shape[-1])
    function, from_logits = loss_function(model)
    is_binary = width == 1 and function in _BINARY
    if width > 1 and function in _BINARY:
        return None
    num_classes = 2 if is_binary else width
    numbered = isinstance(targets, tf.TensorSpec) and is_class_number(targets)
    is_classifier = numbered or function in _CATEGORICAL or len(names or ()) == width
    if not is_binary and (width == 1 or not is_classifier):
        return None
    if names is not None and len(names) != num_classes:
        raise KerasdistError(
            f"The recipe's `CLASS_NAMES` has {len(names)} names, but the model has {num_classes} "
            "classes. Expected a name for each class. Correct `CLASS_NAMES` in data.py."
        )
    return Classes(
        names=tuple(names) if names is not None else tuple(str(i) for i in range(num_classes)),
        is_binary=is_binary,
        from_logits=from_logits,
        one_hot=not is_binary and not numbered,
    )


def is_class_number(targets: Any) -> bool:
    """Whether targets, or their spec, are one whole number per example: `[n]` or `[n, 1]`."""
    rank = targets.shape.rank
    is_single = rank == 1 or (rank == 2 and targets.shape[-1] == 1)
    return bool(is_single and targets.dtype.is_integer)


def loss_function(model: keras.Model) -> tuple[Any, bool]:
    """`(Keras's loss function or None, whether it takes logits)` of a model with one loss."""
    losses = [loss for loss in keras.tree.flatten(getattr(model, "loss", None)) if loss is not None]
    if len(losses) != 1:
        return None, False
    (loss,) = losses
    if isinstance(loss, str):
        # "crossentropy" is not one function: Keras chooses one by the targets.
        loss = keras.losses.get(loss) if loss not in ("crossentropy", "ce") else None
    # A partial function has its options in `keywords`; a custom loss may have an attribute.
    options = getattr(loss, "keywords", {})
    from_logits = getattr(loss, "from_logits", options.get("from_logits", False))
    function = getattr(loss, "fn", getattr(loss, "func", loss))
    return function if callable(function) else None, bool(from_logits)


def output_spec(model: keras.Model, spec: Any) -> Any:
    """`tf.TensorSpec` of the outputs for batches of `spec`, found by tracing the model."""
    args = read(model, spec, need_targets=False).args

    def outputs(*tensors: tf.Tensor) -> Any:
        return pure.call(model, tf.nest.pack_sequence_as(args, tensors), training=False)

    traced = tf.function(outputs, autograph=False)
    traced = traced.get_concrete_function(*tf.nest.flatten(args))
    return tf.nest.map_structure(
        lambda t: tf.TensorSpec(t.shape, t.dtype), traced.structured_outputs
    )


def classes_of_run(
    model: keras.Model, spec: Any, names: Sequence[str] | None
) -> tuple[Classes | None, Any]:
    """`(classes or None, spec of the outputs)` for batches like those of the run's training."""
    outputs = output_spec(model, spec)
    return classes_of(model, outputs, targets_read(model, spec), names), outputs


@dataclass(frozen=True)
class Guess:
    """One of the most probable classes of an example, with its probability or another score."""

    name: str
    index: int
    score: float
    is_probability: bool


def likeliest(classes: Classes, outputs: np.ndarray, count: int) -> list[list[Guess]]:
    """The `count` classes with the highest scores of each example, the highest first.

    Example:
        >>> import numpy as np
        >>> ((best, _),) = likeliest(Classes(("cat", "dog", "eel")), np.array([[0.1, 0.7, 0.2]]), 2)
        >>> best
        Guess(name='dog', index=1, score=0.7, is_probability=True)
    """
    scores = classes.scores(outputs)
    # Scores that are negative or do not add up to 1 are not probabilities, and neither are those
    # of the other examples: some add up to 1 by chance. An example with NaN says nothing of others.
    proper = (scores >= 0).all(axis=-1) & (np.abs(scores.sum(axis=-1) - 1) < _SLACK)
    proper &= (proper | np.isnan(scores).any(axis=-1)).all()
    best = np.argsort(-scores, axis=-1, kind="stable")[:, :count]
    return [
        [Guess(classes.names[i], int(i), float(row[i]), bool(is_proper)) for i in order]
        for row, order, is_proper in zip(scores, best, proper, strict=True)
    ]


def rows(outputs: Any) -> list[Any]:
    """Splits outputs in any structure into one structure per example."""
    flat = keras.tree.flatten(outputs)
    return [
        keras.tree.pack_sequence_as(outputs, [array[i] for array in flat])
        for i in range(len(flat[0]))
    ]


def plain_values(outputs: Any) -> Any:
    """The outputs of one example as plain Python numbers, lists and dicts."""
    if isinstance(outputs, Mapping):
        return {name: plain_values(value) for name, value in outputs.items()}
    if isinstance(outputs, (tuple, list)):
        return [plain_values(value) for value in outputs]
    return np.asarray(outputs).tolist()
