"""Small models and data for tests of wrong input, and `refusal`, which returns the error."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist

X = np.random.default_rng(0).normal(size=(10, 4)).astype("float32")
Y = np.random.default_rng(1).normal(size=(10, 1)).astype("float32")
LABELS = np.arange(10) % 3


def regressor(optimizer="sgd", **options):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(optimizer, "mse", **options)
    return model


def classifier(**loss_options):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, **loss_options)
    model.compile("sgd", loss)
    return model


class Fields(kerasdist.Model):
    features = ("image", "extra")
    targets = "label"

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(3)

    def call(self, image, extra):
        return self.dense(image + extra)

    def defaults(self):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return {"optimizer": "sgd", "loss": loss}


def refusal(model, data, **options):
    """The message of the error that `fit` ends with; the model is as it was before."""
    options = {"batch_size": 5, "progress": False, **options}
    before = model.get_weights() if isinstance(model, keras.Model) else []
    with pytest.raises(kerasdist.KerasdistError) as caught:
        kerasdist.fit(model, data, **options)
    after = model.get_weights() if isinstance(model, keras.Model) else []
    for old, new in zip(before, after, strict=bool(before)):
        np.testing.assert_array_equal(old, new)
    message = str(caught.value)
    # What happened, what is expected, what to do.
    assert "Expected" in message
    assert len([part for part in message.split(". ") if part]) >= 3, message
    return message


def batches(*parts):
    """A generator function of batches of five."""

    def generate():
        for start in range(0, len(parts[0]), 5):
            yield tuple(part[start : start + 5] for part in parts)

    return generate


def dataset(*parts):
    return tf.data.Dataset.from_tensor_slices(parts)


def changed(array, index, value):
    array = array.copy()
    array[index] = value
    return array


class Provider:
    batch_size = 10

    def get_batch_data(self):
        return X, Y
