"""What a model's outputs mean: classes and their probabilities, or plain values."""

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
# How far a sum of probabilities may be from 1, in half precision too.
_SLACK = 1e-2


@dataclass(frozen=True)
class Classes:
    """The outputs of a classifier.

    Attributes:
        names: One for each class.
        is_binary: Whether the model has one output, for the second of two classes.
        from_logits: Whether outputs become probabilities by a softmax, or a sigmoid.
        one_hot: Whether targets hold a number for each class instead of the class's number.
    """

    names: tuple[str, ...]
    is_binary: bool = False
    from_logits: bool = False
    one_hot: bool = False

    def scores(self, outputs: np.ndarray) -> np.ndarray:
        """Probabilities `[n, classes]` where the loss says how, else the outputs as they are.

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
        return powers / powers.sum(axis=-1, keepdims=True)


def classes_of(
    model: keras.Model, outputs: Any, targets: Any, names: Sequence[str] | None
) -> Classes | None:
    """What the outputs mean; None if they are values.

    A classifier has one output `[n, classes]`, and its targets are whole numbers, or its loss is a
    crossentropy, or there is a name for each output.

    Args:
        model: A compiled model.
        outputs: `tf.TensorSpec` of its outputs.
        targets: `tf.TensorSpec` of its targets; None if they are not known.
        names: The recipe's names of the classes.
    """
    if not isinstance(outputs, tf.TensorSpec) or outputs.shape.rank != 2 or not outputs.shape[-1]:
        return None
    width = int(outputs.shape[-1])
    function, from_logits = _loss(model)
    is_binary = width == 1 and function in _BINARY
    num_classes = 2 if is_binary else width
    numbered = isinstance(targets, tf.TensorSpec) and is_class_number(targets)
    is_classifier = numbered or function in _CATEGORICAL or len(names or ()) == width
    if not is_binary and (width == 1 or not is_classifier):
        return None
    if names is not None and len(names) != num_classes:
        raise KerasdistError(
            f"Received {len(names)} names of classes from the recipe's `CLASS_NAMES`, and a model "
            f"with {num_classes} classes. Expected a name for each. Correct `CLASS_NAMES` in "
            "data.py."
        )
    return Classes(
        names=tuple(names) if names is not None else tuple(str(i) for i in range(num_classes)),
        is_binary=is_binary,
        from_logits=from_logits,
        one_hot=not is_binary and not numbered,
    )


def is_class_number(targets: Any) -> bool:
    """Whether targets, or their spec, are one whole number an example: `[n]` or `[n, 1]`."""
    rank = targets.shape.rank
    is_single = rank == 1 or (rank == 2 and targets.shape[-1] == 1)
    return bool(is_single and targets.dtype.is_integer)


def _loss(model: keras.Model) -> tuple[Any, bool]:
    """`(Keras's function behind the loss or None, whether it takes logits)` of a single loss."""
    losses = [loss for loss in keras.tree.flatten(getattr(model, "loss", None)) if loss is not None]
    if len(losses) != 1:
        return None, False
    (loss,) = losses
    if isinstance(loss, str):
        # "crossentropy" has no function of its own: Keras chooses by the targets.
        loss = keras.losses.get(loss) if loss not in ("crossentropy", "ce") else None
    # A partial function has its options in `keywords`, a loss of one's own may have an attribute.
    options = getattr(loss, "keywords", {})
    from_logits = getattr(loss, "from_logits", options.get("from_logits", False))
    function = getattr(loss, "fn", getattr(loss, "func", loss))
    return function if callable(function) else None, bool(from_logits)


def output_spec(model: keras.Model, spec: Any) -> Any:
    """`tf.TensorSpec` of the outputs for batches of `spec`; nothing is run."""
    args = read(model, spec, need_targets=False).args

    def outputs(*tensors):
        return pure.call(model, tf.nest.pack_sequence_as(args, tensors), training=False)

    traced = tf.function(outputs, autograph=False)
    traced = traced.get_concrete_function(*tf.nest.flatten(args))
    return tf.nest.map_structure(
        lambda t: tf.TensorSpec(t.shape, t.dtype), traced.structured_outputs
    )


def classes_of_run(
    model: keras.Model, spec: Any, names: Sequence[str] | None
) -> tuple[Classes | None, Any]:
    """`(classes_of, spec of the outputs)` for the batches that a run was trained on."""
    outputs = output_spec(model, spec)
    return classes_of(model, outputs, targets_read(model, spec), names), outputs


@dataclass(frozen=True)
class Guess:
    """One of the likeliest classes of an example; `is_probability` is False for other scores."""

    name: str
    index: int
    score: float
    is_probability: bool


def likeliest(classes: Classes, outputs: np.ndarray, count: int) -> list[list[Guess]]:
    """The `count` best classes of each example, the best first.

    Example:
        >>> import numpy as np
        >>> ((best, _),) = likeliest(Classes(("cat", "dog", "eel")), np.array([[0.1, 0.7, 0.2]]), 2)
        >>> best
        Guess(name='dog', index=1, score=0.7, is_probability=True)
    """
    scores = classes.scores(outputs)
    # Outputs of an unknown kind are no probabilities, and are not called so.
    proper = (scores >= 0).all(axis=-1) & (np.abs(scores.sum(axis=-1) - 1) < _SLACK)
    best = np.argsort(-scores, axis=-1, kind="stable")[:, :count]
    return [
        [Guess(classes.names[i], int(i), float(row[i]), bool(is_proper)) for i in order]
        for row, order, is_proper in zip(scores, best, proper, strict=True)
    ]


def rows(outputs: Any) -> list[Any]:
    """Outputs in any structure as one structure for each example."""
    flat = keras.tree.flatten(outputs)
    return [
        keras.tree.pack_sequence_as(outputs, [array[i] for array in flat])
        for i in range(len(flat[0]))
    ]


def plain_values(outputs: Any) -> Any:
    """One example's outputs as Python's own numbers, lists and dicts."""
    if isinstance(outputs, Mapping):
        return {name: plain_values(value) for name, value in outputs.items()}
    if isinstance(outputs, (tuple, list)):
        return [plain_values(value) for value in outputs]
    return np.asarray(outputs).tolist()
