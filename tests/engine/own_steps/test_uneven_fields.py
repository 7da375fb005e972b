"""Own steps whose batches have fields of different sizes, such as labels for a part of them."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from tests.device_counts import those_here

rng = np.random.default_rng(3)
UNLABELED = rng.normal(size=(48, 3)).astype("float32")
LABELED = rng.normal(size=(12, 3)).astype("float32")
LABELS = rng.normal(size=(12, 1)).astype("float32")


class SemiSupervised(keras.Model):
    def __init__(self):
        super().__init__()
        self.encoder, self.probe = keras.layers.Dense(4), keras.layers.Dense(1)

    def call(self, x):
        return self.probe(self.encoder(x))

    def train_step(self, data):
        (unlabeled, _), (labeled, labels) = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(self.encoder(unlabeled) ** 2)
            loss += tf.reduce_mean((self(labeled) - labels) ** 2)
        weights = self.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def zipped():
    unlabeled = tf.data.Dataset.from_tensor_slices((UNLABELED, np.zeros(48))).batch(16)
    labeled = tf.data.Dataset.from_tensor_slices((LABELED, LABELS)).batch(4)
    return tf.data.Dataset.zip((unlabeled, labeled))


@pytest.mark.parametrize("devices", [1, 2])
def test_fields_of_different_sizes_run_whole(devices, capsys):
    (devices,) = those_here(devices)
    models = [SemiSupervised(), SemiSupervised()]
    for model in models:
        model(UNLABELED)
        model.compile("sgd")
    expected, found = models
    found.set_weights(expected.get_weights())
    losses = expected.fit(zipped(), epochs=2, shuffle=False, verbose=0).history["loss"]
    history = kerasdist.fit(found, zipped(), epochs=2, devices=devices)
    np.testing.assert_allclose(history.history["loss"], losses, rtol=1e-6)
    for one, other in zip(found.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    said = "the fields of a batch have different numbers of examples ([4, 16])"
    assert (said in capsys.readouterr().out) == (devices == 2)


def test_keras_steps_still_need_one_row_per_example():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    x = tf.data.Dataset.from_tensor_slices(LABELED).batch(6)
    y = tf.data.Dataset.from_tensor_slices(LABELS).batch(4)
    with pytest.raises(kerasdist.KerasdistError, match="the same number in each field"):
        kerasdist.fit(model, tf.data.Dataset.zip((x, y)), devices=1)
