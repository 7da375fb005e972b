"""Counts per class and per group, in the pass that computes the metrics."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.evaluation import confusion
from kerasdist.evaluation.classes import classes_of_run
from kerasdist.evaluation.confusion import measure


def model_of(units, loss, **compiled):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])
    model.compile("sgd", loss, metrics=["accuracy"], **compiled)
    return model


def tally_of(model, targets, names=None):
    x, y = (
        tf.TensorSpec((None, 4), "float32"),
        tf.TensorSpec((None, *targets.shape[1:]), targets.dtype),
    )
    classes, _ = classes_of_run(model, (x, y), names)
    return None if classes is None else confusion.Tally(classes, {})


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(50, 4)).astype("float32")


def matrix_of(labels, answers, size=3):
    matrix = np.zeros((size, size), int)
    np.add.at(matrix, (labels, answers), 1)
    return matrix.tolist()


def test_groups_for_another_number_of_examples_are_refused(x):
    labels = np.arange(50) % 3
    model = model_of(3, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    classes = tally_of(model, labels).classes
    for count in (49, 51):
        tally = confusion.Tally(classes, {"speaker": np.array(["ann"] * count)})
        with pytest.raises(kerasdist.KerasdistError, match=f"{count} names of the group 'speaker'"):
            measure(model, (x, labels), tally)
    tally = confusion.Tally(classes, {"speaker": np.array(["ann"] * 51)})
    _, counts = measure(model, (x, labels), tally, steps=1, batch_size=50)
    assert counts.groups["speaker"][0].examples == 50


def test_names_for_another_number_of_classes_are_refused():
    model = model_of(3, "sparse_categorical_crossentropy")
    with pytest.raises(kerasdist.KerasdistError, match="2 names, but the model has 3 classes"):
        tally_of(model, np.arange(3), names=("low", "high"))


def test_a_generator_that_can_be_read_once_is_enough(x):
    labels = np.arange(50) % 3
    model = model_of(3, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batches = ((x[i : i + 8], labels[i : i + 8]) for i in range(0, 50, 8))
    results, counts = measure(model, batches, tally_of(model, labels))
    assert results == kerasdist.evaluate(model, (x, labels), batch_size=8)
    assert counts.matrix.tolist() == matrix_of(labels, np.asarray(model(x)).argmax(-1))
    assert type(model) is keras.Sequential  # As it was before.
    assert kerasdist.evaluate(model, (x, labels), batch_size=8) == results


def test_one_hot_targets_of_a_crossentropy_are_labels(x):
    labels = np.arange(50) % 3
    targets = np.eye(3, dtype="float32")[labels]
    model = model_of(3, keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1))
    _, counts = measure(model, (x, targets), tally_of(model, targets))
    assert counts.matrix.tolist() == matrix_of(labels, np.asarray(model(x)).argmax(-1))


@pytest.mark.parametrize("from_logits", [True, False])
def test_a_binary_classifier_has_two_classes(x, from_logits):
    labels = (np.arange(50) % 3 == 0).astype("float32")[:, None]
    model = model_of(1, keras.losses.BinaryCrossentropy(from_logits=from_logits))
    _, counts = measure(model, (x, labels), tally_of(model, labels))
    answers = (np.asarray(model(x)) > (0 if from_logits else 0.5)).astype(int)
    expected = matrix_of(labels[:, 0].astype(int), answers[:, 0], 2)
    assert counts.matrix.tolist() == expected
    assert counts.names == ("0", "1")


def test_a_regression_has_no_classes(x):
    model = model_of(3, "mse")
    assert tally_of(model, x[:, :3]) is None
    results, counts = measure(model, (x, x[:, :3]), None)
    assert counts is None
    assert results == kerasdist.evaluate(model, (x, x[:, :3]))


def test_weighted_metrics_and_ignored_labels_stay_as_they_were(x):
    labels = np.arange(50) % 3
    labels[::5] = -1
    weights = np.linspace(0, 2, 50).astype("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    model = model_of(
        3, loss, weighted_metrics=[keras.metrics.SparseCategoricalAccuracy("weighted")]
    )
    data = (x, labels, weights)
    results, counts = measure(
        model, data, tally_of(model, labels), devices=[f"CPU:{i}" for i in range(3)]
    )
    assert results == pytest.approx(kerasdist.evaluate(model, data), rel=1e-5)
    assert results["weighted"] != results["accuracy"]
    assert counts.matrix.sum() == 40
