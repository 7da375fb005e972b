"""Counts a classifier's right and wrong answers in the same pass that computes its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.evaluation.classes import Classes
from kerasdist.evaluation.views import acting_as
from kerasdist.training import api

# A matrix of this many classes takes 32 MB.
MOST_CLASSES = 2000


@dataclass(frozen=True)
class Row:
    """The number of examples of a class or a group, and how many of them were answered right."""

    name: str
    correct: int
    examples: int

    @property
    def accuracy(self) -> float | None:
        return self.correct / self.examples if self.examples else None


@dataclass(frozen=True)
class Counts:
    """The confusion matrix (rows: the label, columns: the answer), and counts per group."""

    names: tuple[str, ...]
    matrix: np.ndarray
    groups: Mapping[str, tuple[Row, ...]]

    def by_class(self) -> list[Row]:
        return [
            Row(name, int(row[i]), int(row.sum()))
            for i, (name, row) in enumerate(zip(self.names, self.matrix, strict=True))
        ]

    def mistakes(self, most: int) -> list[tuple[str, str, int]]:
        """`(label, answer, count)` of the most frequent mistakes, at most `most` of them."""
        wrong = self.matrix * (1 - np.eye(len(self.names), dtype=self.matrix.dtype))
        order = np.argsort(-wrong, axis=None, kind="stable")[:most]
        pairs = [(int(i), int(j)) for i, j in zip(*np.unravel_index(order, wrong.shape))]  # noqa: B905
        return [(self.names[i], self.names[j], int(wrong[i, j])) for i, j in pairs if wrong[i, j]]


class Tally(keras.metrics.Metric):
    """A metric that counts answers per class and per group.

    It needs whole batches in the order of the data.

    Args:
        classes: The classes of the model.
        groups: For each kind of group ("speaker"), the name of each example's group.
    """

    def __init__(self, classes: Classes, groups: Mapping[str, np.ndarray]):
        super().__init__(name="kerasdist_tally")
        self.classes = classes
        # Whether the targets are labels. Known after the first batch is traced.
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
        """Counts a batch. Weights do not change the counts, so `sample_weight` is ignored."""
        label = self.classes.labels(y_true)
        self.applies = label is not None
        if label is None:
            return
        answer = self._answers(y_pred)
        size = len(self.classes.names)
        # The loss ignores labels outside this range (`ignore_class`). Others are refused earlier.
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
            # With too few group names the last one is reused here, and `counts` raises.
            group = tf.gather(ids, tf.minimum(position + tf.range(count), len(self._ids[kind]) - 1))
            num_groups = len(self.group_names[kind])
            sums = [tf.math.unsorted_segment_sum(each, group, num_groups) for each in (right, ones)]
            table.assign_add(tf.stack(sums))
        self._position.assign_add(count)

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
        """The counts so far; None if the targets were not labels.

        Args:
            is_whole: Whether all data was read. Then every group name must have been used.
        """
        if not self.applies:
            return None
        seen = int(self._position.numpy())
        groups = {}
        for kind, table in self._tables.items():
            known = len(self._ids[kind])
            if seen > known or (is_whole and seen != known):
                raise KerasdistError(
                    f"The recipe's `build_groups` returned {known:,} names of the group {kind!r}, "
                    f"but the data has {seen:,} examples. Expected a name per example, in the "
                    "order of the data. Correct `build_groups` in data.py."
                )
            correct, examples = table.numpy().tolist()
            rows = zip(self.group_names[kind], correct, examples, strict=True)
            groups[kind] = tuple(Row(*row) for row in rows)
        return Counts(self.classes.names, self._matrix.numpy(), groups)


def counting(model: keras.Model, tally: Tally) -> AbstractContextManager[None]:
    """A context in which evaluating `model` also updates `tally`, from the same outputs.

    The model overrides `metrics` and `compute_metrics`, Keras's hooks for custom metrics. A model
    that overrides `compute_metrics` gets whole batches in order, which groups need.
    """
    own: Any = type(model)

    class Counting(own):
        @property
        def metrics(self) -> list[Any]:
            return [*super().metrics, tally]

        def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
            tally.update_state(y, y_pred)
            return super().compute_metrics(x, y, y_pred, sample_weight)

    return acting_as(model, Counting)


def measure(
    model: keras.Model, data: Any, tally: Tally | None, **arguments: Any
) -> tuple[dict[str, Any], Counts | None]:
    """The results of `kerasdist.evaluate`, and the counts of the same pass."""
    if tally is None:
        return api.evaluate(model, data, **arguments), None
    with counting(model, tally):
        results = api.evaluate(model, data, **arguments)
    results.pop(tally.name)
    return results, tally.counts(is_whole=arguments.get("steps") is None)
