"""Values that spoil a training: NaN, class numbers out of range, fields of different sizes."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from tests.bad_input import (
    LABELS,
    Fields,
    X,
    Y,
    batches,
    changed,
    classifier,
    dataset,
    refusal,
    regressor,
)


@pytest.mark.parametrize(("label", "index"), [(3, 7), (-1, 2)])
def test_labels_outside_the_classes_of_arrays(label, index, not_compiled):
    message = refusal(classifier(), (X, changed(LABELS, index, label)))
    assert f"the label {label} in `data` (example {index}" in message
    assert "from 0 to 2" in message
    assert "3 outputs" in message


@pytest.mark.parametrize("form", [dataset, batches])
def test_labels_outside_the_classes_of_a_stream_name_the_batch(form):
    options = {"batch_size": None} if form is batches else {"shuffle": False}
    model = classifier()
    model.optimizer.learning_rate = 0.0
    message = refusal(model, form(X, changed(LABELS, 7, 5)), **options)
    assert "the label 5 in `data` (batch 1 " in message
    assert int(model.optimizer.iterations) == 1  # The batch before it was fine.


def test_the_ignored_class_may_be_outside_the_classes():
    labels = changed(LABELS, 7, -1)
    model = classifier(ignore_class=-1)
    kerasdist.fit(model, (X, labels), batch_size=5, progress=False)
    kerasdist.fit(model, batches(X, labels), progress=False)
    assert np.isfinite(model.get_weights()[0]).all()


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_nan_in_arrays(value, not_compiled):
    message = refusal(regressor(), (changed(X, (6, 2), value), Y))
    assert "NaN or infinity in `data` (x, example 6 " in message
    message = refusal(regressor(), (X, changed(Y, 3, value)))
    assert "(y, example 3 " in message
    weights = changed(np.ones(10, "float32"), 9, value)
    assert "(sample_weight, example 9 " in refusal(regressor(), (X, Y, weights))
    data = {"image": X, "extra": changed(X, (4, 0), value), "label": LABELS}
    assert "(extra, example 4 " in refusal(Fields(), data)


def test_nan_in_a_field_that_nobody_reads_is_no_error():
    data = {"image": X, "extra": X, "label": LABELS, "more": np.full(10, np.nan)}
    kerasdist.fit(Fields(), data, batch_size=5, progress=False)


@pytest.mark.parametrize("form", [dataset, batches])
def test_nan_in_a_stream_names_the_batch(form):
    options = {"batch_size": None} if form is batches else {"shuffle": False}
    model = regressor(keras.optimizers.SGD(0.0))
    message = refusal(model, form(changed(X, (6, 2), np.nan), Y), **options)
    assert "NaN or infinity in `data` (x, batch 1 " in message
    assert int(model.optimizer.iterations) == 1


def test_nan_in_validation_data_names_it():
    model = regressor(keras.optimizers.SGD(0.0))
    bad = changed(X, (6, 2), np.nan)
    message = refusal(model, (X, Y), validation_data=(bad, Y))
    assert "in `validation_data` (x, example 6 " in message
    message = refusal(model, (X, Y), validation_data=batches(bad, Y))
    assert "in `validation_data` (x, batch 1 " in message


def uneven():
    yield X[:5], Y[:5]
    yield X[5:], Y[5:9]


def empty_batch():
    yield X, Y
    yield X[:0], Y[:0]


@pytest.mark.parametrize("devices", [1, 2])
def test_a_batch_with_fields_of_different_lengths_is_named(devices):
    options = {"batch_size": None, "devices": devices}
    model = regressor(keras.optimizers.SGD(0.0))
    message = refusal(model, uneven, **options)
    assert "batch 1 " in message
    assert "(4, 1)" in message
    signature = tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1])
    data = tf.data.Dataset.from_generator(uneven, output_signature=signature)
    message = refusal(model, data, **options)
    assert "[5 4] examples (x, y; batch 1 " in message


def test_a_batch_without_examples_is_named():
    model = regressor(keras.optimizers.SGD(0.0))
    message = refusal(model, empty_batch, batch_size=None)
    assert "batch 1 (from 0) of `data` with 0 examples" in message
    signature = tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1])
    data = tf.data.Dataset.from_generator(empty_batch, output_signature=signature)
    assert "[0 0] examples (x, y; batch 1 " in refusal(model, data, batch_size=None)


def test_labels_of_the_output_concerned_are_checked():
    inputs = keras.Input((4,))
    outputs = {"few": keras.layers.Dense(3)(inputs), "many": keras.layers.Dense(5)(inputs)}
    model = keras.Model(inputs, outputs)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", {"few": loss, "many": loss})
    labels = np.arange(10) % 5
    message = refusal(model, (X, {"few": labels, "many": labels}))
    assert "the label 3 in `data` (example 3 " in message
    message = refusal(model, batches_of_dicts(few=labels % 3, many=labels + 1), batch_size=None)
    assert "the label 5 in `data` (batch 0 " in message
    kerasdist.fit(model, (X, {"few": labels % 3, "many": labels}), batch_size=5, progress=False)


def batches_of_dicts(**targets):
    return lambda: iter([(X, targets)])


def test_prediction_goes_on_over_nan_but_not_over_uneven_batches():
    bad = changed(X, (6, 2), np.nan)
    for data in ((bad, Y), batches(bad, Y)):
        outputs = kerasdist.predict(regressor(), data)
        assert np.isnan(outputs[:, 0]).tolist() == [i == 6 for i in range(10)]
    signature = tf.TensorSpec([None, 4]), tf.TensorSpec([None, 1])
    data = tf.data.Dataset.from_generator(uneven, output_signature=signature)
    with pytest.raises(kerasdist.KerasdistError, match=r"\[5 4\] examples"):
        kerasdist.predict(regressor(), data)
