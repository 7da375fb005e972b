"""Collects the answers of a classifier or a regression, batch by batch, for a report."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.evaluation import probabilities, regression
from kerasdist.evaluation.classes import Classes, Guess, likeliest
from kerasdist.evaluation.drawings import encoded, picture
from kerasdist.evaluation.selection import Highest


class ClassAnswers:
    """A classifier's answers: the confusion matrix, the worst and best examples, probabilities.

    Args:
        classes: The classes of the model.
    """

    def __init__(self, classes: Classes):
        self._classes = classes
        self._matrix = np.zeros((len(classes.names),) * 2, np.int64)
        self._worst, self._best = Highest(in_turn=False), Highest(in_turn=True)
        self._position = 0
        # Of the examples whose scores are probabilities: that of the answer, that of the second
        # class, and the label and the answer.
        self._answered: list[np.ndarray] = []

    @property
    def num_examples(self) -> int:
        """How many examples were counted."""
        return int(self._matrix.sum())

    def add(
        self,
        targets: Any,
        outputs: np.ndarray,
        fields: dict[str, Any],
        numbers: list[int] | None = None,
    ) -> bool:
        """Counts a batch; False if its targets are not labels.

        Args:
            targets: The batch's targets.
            outputs: The model's outputs.
            fields: The batch by field, to draw examples.
            numbers: The numbers of the examples in the data; None if they come in order.
        """
        labels = self._classes.labels(targets)
        if labels is None:
            return False
        scores = self._classes.scores(outputs)
        guesses = likeliest(self._classes, outputs, 1)
        places = numbers or range(self._position, self._position + len(guesses))
        known = []
        for i, (label, (guess,)) in enumerate(zip(labels.numpy().tolist(), guesses, strict=True)):
            if not 0 <= label < len(self._classes.names):
                continue  # The loss ignores it.
            self._matrix[label, guess.index] += 1
            if guess.is_probability:
                known.append((guess.score, scores[i, 1], label, guess.index))
            draw = partial(picture, fields, i)
            self._offer(label, guess, float(scores[i, label]), draw, places[i])
        if known:
            self._answered.append(np.array(known))
        self._position += len(guesses)
        return True

    def _offer(
        self,
        label: int,
        guess: Guess,
        share: float,
        draw: Callable[[], bytes | None],
        position: int,
    ) -> None:
        # Scores that are not probabilities are ordered by their distance to the highest score.
        loss = -math.log(max(share, 1e-30)) if guess.is_probability else guess.score - share

        def fields() -> dict[str, Any]:
            return {
                "loss": loss,
                "position": position,
                "label": self._classes.names[label],
                "answer": guess.name,
                "probability": guess.score if guess.is_probability else None,
                "label_probability": share if guess.is_probability else None,
                "png": encoded(draw()),
            }

        self._worst.offer(label, loss, position, fields)
        self._best.offer(label, -loss, position, fields)

    def content(self) -> dict[str, Any]:
        """What evaluation.json says about a classifier."""
        found: dict[str, Any] = {
            "classes": list(self._classes.names),
            "confusion": self._matrix.tolist(),
            "worst": self._worst.fields(),
            "best": self._best.fields(),
        }
        if self._answered:
            answered, second, labels, answers = np.concatenate(self._answered).T
            found["calibration"] = probabilities.calibration(answered, labels == answers)
            if len(self._classes.names) == 2:
                curve = probabilities.precision_recall(second, labels == 1)
                if curve is not None:
                    found["precision_recall"] = {"class": self._classes.names[1], **curve}
        return found


class ValueAnswers:
    """A regression's answers: predictions and targets, and the examples with the largest errors.

    Args:
        names: A name per target.
    """

    def __init__(self, names: tuple[str, ...]):
        self._names = names
        self._pairs: list[np.ndarray] = []
        self._worst, self._best = Highest(in_turn=False), Highest(in_turn=False)
        self.num_examples = 0

    def add(
        self,
        targets: Any,
        outputs: np.ndarray,
        fields: dict[str, Any],
        numbers: list[int] | None = None,
    ) -> bool:
        """Collects a batch; False if its targets are not values of the same shape.

        Args:
            targets: The batch's targets.
            outputs: The model's outputs.
            fields: The batch by field, to draw examples.
            numbers: The numbers of the examples in the data; None if they come in order.
        """
        flat = tf.nest.flatten(targets)
        shape = (len(outputs), len(self._names))
        if len(flat) != 1 or flat[0] is None or np.size(flat[0]) != math.prod(shape):
            return False
        true = np.asarray(flat[0], np.float64).reshape(shape)
        predicted = np.asarray(outputs, np.float64).reshape(shape)
        errors = np.abs(predicted - true).mean(axis=1)
        places = numbers or range(self.num_examples, self.num_examples + len(outputs))
        for i, error in enumerate(errors.tolist()):
            if math.isfinite(error):
                self._offer(error, true[i], predicted[i], partial(picture, fields, i), places[i])
        self._pairs.append(np.stack([true, predicted]))
        self.num_examples += len(outputs)
        return True

    def _offer(
        self,
        error: float,
        true: np.ndarray,
        predicted: np.ndarray,
        draw: Callable[[], bytes | None],
        position: int,
    ) -> None:
        def fields() -> dict[str, Any]:
            return {
                "loss": error,
                "position": position,
                "target": true.tolist() if len(true) > 1 else float(true[0]),
                "prediction": predicted.tolist() if len(true) > 1 else float(predicted[0]),
                "png": encoded(draw()),
            }

        self._worst.offer(None, error, position, fields)
        self._best.offer(None, -error, position, fields)

    def content(self) -> dict[str, Any]:
        """What evaluation.json says about a regression."""
        true, predicted = np.concatenate(self._pairs, axis=1)
        return {
            "targets": [
                regression.measured(name, true[:, i], predicted[:, i])
                for i, name in enumerate(self._names)
            ],
            "worst": self._worst.fields(),
            "best": self._best.fields(),
        }
