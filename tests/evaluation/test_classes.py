"""What a model's outputs mean: classes, probabilities or values."""

import doctest
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.evaluation import classes as classes_module
from kerasdist.evaluation.classes import Classes, classes_of, likeliest

NAMES = ("low", "middle", "high")
LABELS = tf.TensorSpec((None,), "int64")


def meaning(loss, width=3, targets=None, names=None):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(width)])
    model.compile("sgd", loss)
    outputs = tf.TensorSpec((None, width), "float32")
    return classes_of(model, outputs, targets, names)


@pytest.mark.parametrize(
    ("loss", "from_logits"),
    [
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), True),
        (keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1), True),
        (keras.losses.SparseCategoricalCrossentropy(), False),
        ("sparse_categorical_crossentropy", False),
        ([keras.losses.SparseCategoricalCrossentropy(from_logits=True)], True),
        (partial(keras.losses.sparse_categorical_crossentropy, from_logits=True), True),
    ],
)
def test_the_loss_says_whether_outputs_are_logits(loss, from_logits):
    classes = meaning(loss)
    assert classes.names == ("0", "1", "2")
    outputs = np.array([[1.0, 3.0, -2.0], [1000.0, 0.0, 0.0]])
    if not from_logits:
        assert classes.scores(outputs).tolist() == outputs.tolist()
        return
    expected = np.exp(outputs[0]) / np.exp(outputs[0]).sum()
    assert classes.scores(outputs)[0] == pytest.approx(expected)
    assert classes.scores(outputs)[1].tolist() == [1, 0, 0]  # Without an overflow.


def test_a_loss_of_ones_own_may_say_so_too():
    class Smoothed(keras.losses.Loss):
        from_logits = True

        def call(self, y_true, y_pred):
            return keras.ops.mean(y_pred, axis=-1)

    class Silent(Smoothed):
        from_logits = False

    assert meaning(Smoothed(), targets=LABELS).from_logits
    assert meaning(Smoothed(), names=NAMES).names == NAMES
    assert not meaning(Silent(), targets=LABELS).from_logits
    assert meaning(Smoothed()) is None  # Nothing says that these are classes.


def test_scores_that_are_no_probabilities_are_not_called_so():
    classes = meaning("mse", names=NAMES)
    ((best, *_),) = likeliest(classes, np.array([[1.0, 3.0, -2.0]]), 2)
    assert (best.name, best.score, best.is_probability) == ("middle", 3.0, False)
    ((best, *_),) = likeliest(classes, np.array([[1.5, 0.5, -1.0]]), 2)
    assert not best.is_probability
    ((best, *_),) = likeliest(classes, np.array([[0.2, 0.7, 0.1]]), 2)
    assert best.is_probability


def test_scores_that_add_up_to_1_by_chance_are_no_probabilities():
    classes = Classes(NAMES)
    chance = np.array([[0.2, 0.7, 0.1], [0.9, 0.8, 0.1]])
    assert [best.is_probability for (best,) in likeliest(classes, chance, 1)] == [False, False]
    unknown = np.array([[0.2, 0.7, 0.1], [np.nan, 0.8, 0.1]])
    assert [best.is_probability for (best,) in likeliest(classes, unknown, 1)] == [True, False]


@pytest.mark.parametrize("from_logits", [True, False])
def test_one_output_of_a_binary_crossentropy_is_the_second_class(from_logits):
    classes = meaning(keras.losses.BinaryCrossentropy(from_logits=from_logits), width=1)
    outputs = np.array([[2.0], [-800.0]]) if from_logits else np.array([[0.8], [0.0]])
    expected = 1 / (1 + np.exp(-2.0)) if from_logits else 0.8
    assert classes.scores(outputs) == pytest.approx(np.array([[1 - expected, expected], [1, 0]]))


@pytest.mark.parametrize(
    "loss", [keras.losses.BinaryCrossentropy(True), "binary_focal_crossentropy"]
)
def test_several_labels_per_example_are_no_classes(loss):
    """A softmax over them would be a wrong probability, and their argmax a wrong label."""
    labels = tf.TensorSpec((None, 3), "float32")
    assert meaning(loss, targets=labels, names=NAMES) is None
    assert meaning(loss, width=2, targets=tf.TensorSpec((None, 2)), names=NAMES[:2]) is None


def test_values_are_no_classes():
    assert meaning("mse") is None
    assert meaning("mse", width=1, targets=LABELS) is None
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    maps = tf.TensorSpec((None, 8, 3), "float32")
    assert classes_of(model, maps, LABELS, None) is None
    assert classes_of(model, (LABELS, LABELS), LABELS, None) is None


@pytest.mark.parametrize(
    ("classes", "targets", "expected"),
    [
        (Classes(NAMES), np.array([2, 0]), [2, 0]),
        (Classes(NAMES), np.array([[2], [0]]), [2, 0]),
        (Classes(NAMES, one_hot=True), np.eye(3)[[2, 0]], [2, 0]),
        (Classes(NAMES[:2], is_binary=True), np.array([[1.0], [0.0]]), [1, 0]),
        (Classes(NAMES[:2], is_binary=True), np.array([0.9, 0.1, 0.5]), [1, 0, 0]),
        (Classes(NAMES[:2], is_binary=True), np.array([True, False]), [1, 0]),
        (Classes(NAMES[:2], is_binary=True), np.array([1.0, np.nan, -1.0, 2.0]), [1, -1, -1, -1]),
        (Classes(NAMES), np.eye(3)[[2, 0]], None),
        (Classes(NAMES, one_hot=True), np.eye(4)[[2, 0]], None),
        (Classes(NAMES), (np.array([1]), np.array([2])), None),
        (Classes(NAMES), None, None),
    ],
)
def test_targets_become_class_numbers(classes, targets, expected):
    found = classes.labels(targets)
    assert (None if found is None else found.numpy().tolist()) == expected
    if found is not None:
        assert found.dtype == tf.int64


def test_examples_of_docstrings_run():
    assert doctest.testmod(classes_module).failed == 0
