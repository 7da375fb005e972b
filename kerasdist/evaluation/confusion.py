"""Right and wrong answers of a classifier, counted in the pass that computes its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.evaluation.classes import Classes, is_class_number
from kerasdist.evaluation.views import acting_as

# The matrix of so many classes takes 32 MB.
MOST_CLASSES = 2000


@dataclass(frozen=True)
class Row:
    """How many examples of a class or a group there were, and how many answers were right."""

    name: str
    correct: int
    examples: int

    @property
    def accuracy(self) -> float | None:
        return self.correct / self.examples if self.examples else None


@dataclass(frozen=True)
class Counts:
    """The confusion matrix (rows: the label, columns: the answer), and counts by group."""

    names: tuple[str, ...]
    matrix: np.ndarray
    groups: Mapping[str, tuple[Row, ...]]

    def by_class(self) -> list[Row]:
        return [
            Row(name, int(row[i]), int(row.sum()))
            for i, (name, row) in enumerate(zip(self.names, self.matrix, strict=True))
        ]

    def mistakes(self, most: int) -> list[tuple[str, str, int]]:
        """`(label, answer, count)` of the most frequent ones."""
        wrong = self.matrix * (1 - np.eye(len(self.names), dtype=self.matrix.dtype))
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        pairs = [(int(i), int(j)) for i, j in zip(*np.unravel_index(order, wrong.shape))]  # noqa: B905
        return [(self.names[i], self.names[j], int(wrong[i, j])) for i, j in pairs if wrong[i, j]]


class Tally(keras.metrics.Metric):
    """Counts answers by class and by group. Needs whole batches in the order of the data.

    Args:
        classes: What the outputs mean.
        groups: For each kind of group ("speaker"), the name of each example's group.
    """

    def __init__(self, classes: Classes, groups: Mapping[str, np.ndarray]):
        super().__init__(name="kerasdist_tally")
        self.classes = classes
        # Whether the targets were labels: known once the first batch is traced.
        self.applies = False
        self.group_names: dict[str, list[str]] = {}
        self._ids: dict[str, np.ndarray] = {}
        size = len(classes.names)
        self._matrix = self._counter("matrix", (size, size))
        self._position = self._counter("position", ())
        self._tables = {}
        for kind, members in groups.items():
            names, ids = np.unique(members, return_inverse=True)
            self.group_names[kind], self._ids[kind] = [str(name) for name in names], ids
            self._tables[kind] = self._counter(f"group_{kind}", (2, len(names)))

    def _counter(self, name: str, shape: tuple[int, ...]) -> keras.Variable:
        return self.add_variable(shape, initializer="zeros", dtype="int64", name=name)

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        """Adds a batch. `sample_weight` is not used: answers are counted."""
        label = self._labels(y_true)
        self.applies = label is not None
        if label is None:
            return
        answer = self._answers(y_pred)
        size = len(self.classes.names)
        # A label outside is one that the loss ignores; anything else was refused before.
        known = (label >= 0) & (label < size)
        ones = tf.cast(known, tf.int64)
        cell = tf.where(known, label * size + answer, 0)
        counts = tf.math.unsorted_segment_sum(ones, cell, size * size)
        self._matrix.assign_add(tf.reshape(counts, (size, size)))
        right = tf.where(answer == label, ones, 0)
        count = tf.shape(label, tf.int64)[0]
        position = tf.convert_to_tensor(self._position)
        for kind, table in self._tables.items():
            ids = tf.constant(self._ids[kind], tf.int64)
            # Past its end the count is wrong, and refused afterwards.
            group = tf.gather(ids, tf.minimum(position + tf.range(count), len(self._ids[kind]) - 1))
            num_groups = len(self.group_names[kind])
            sums = [tf.math.unsorted_segment_sum(each, group, num_groups) for each in (right, ones)]
            table.assign_add(tf.stack(sums))
        self._position.assign_add(count)

    def _labels(self, y_true: Any) -> tf.Tensor | None:
        flat = tf.nest.flatten(y_true)
        if len(flat) != 1 or flat[0] is None:
            return None
        y = tf.convert_to_tensor(flat[0])
        if is_class_number(y) or (self.classes.is_binary and y.shape.rank in (1, 2)):
            return tf.cast(tf.reshape(y, (-1,)), tf.int64)
        if self.classes.one_hot and y.shape.rank == 2 and y.shape[-1] == len(self.classes.names):
            return tf.argmax(y, axis=-1)
        return None

    def _answers(self, y_pred: Any) -> tf.Tensor:
        outputs = tf.convert_to_tensor(tf.nest.flatten(y_pred)[0])
        if self.classes.is_binary:
            middle = 0.0 if self.classes.from_logits else 0.5
            return tf.cast(tf.reshape(outputs, (-1,)) > tf.cast(middle, outputs.dtype), tf.int64)
        return tf.argmax(outputs, axis=-1)

    def result(self) -> Any:
        """The number of examples so far."""
        return self._position + 0

    def counts(self, is_whole: bool) -> Counts | None:
        """What was counted; None if the targets were no labels.

        Args:
            is_whole: Whether all of the data was read, which then has as many examples as groups.
        """
        if not self.applies:
            return None
        seen = int(self._position.numpy())
        groups = {}
        for kind, table in self._tables.items():
            known = len(self._ids[kind])
            if seen > known or (is_whole and seen != known):
                raise KerasdistError(
                    f"Received {known:,} names of the group {kind!r} from the recipe's "
                    f"`build_groups`, and {seen:,} examples. Expected one for each example, in the "
                    "order of the data. Correct `build_groups` in data.py."
                )
            correct, examples = table.numpy().tolist()
            rows = zip(self.group_names[kind], correct, examples, strict=True)
            groups[kind] = tuple(Row(*row) for row in rows)
        return Counts(self.classes.names, self._matrix.numpy(), groups)


def counting(model: keras.Model, tally: Tally) -> Any:
    """A context in which an evaluation of `model` updates `tally` too, from the same outputs.

    `metrics` and `compute_metrics` are where Keras lets a model have metrics of its own. A model
    with its own `compute_metrics` gets whole batches in order, which groups need.
    """
    kind = type(model)

    class Counting(kind):  # type: ignore[valid-type, misc]
        @property
        def metrics(self):
            return [*super().metrics, tally]

        def compute_metrics(self, x, y, y_pred, sample_weight=None):
            tally.update_state(y, y_pred)
            return super().compute_metrics(x, y, y_pred, sample_weight)

    return acting_as(model, Counting)
