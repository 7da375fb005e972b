"""Own steps on batches whose shapes vary, in a model without `call`."""

import keras
import numpy as np
import tensorflow as tf

import kerasdist
from tests.device_counts import at_most


class Lengths(keras.utils.PyDataset):
    """Sequences that are longer in each batch."""

    def __len__(self):
        return 3

    def __getitem__(self, index):
        values = np.random.default_rng(index).normal(size=(8, 3 + index, 2))
        return (values.astype("float32"),)


class Steps(keras.Model):
    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1)
        self.layer.build((None, None, 2))

    def train_step(self, data):
        (x,) = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.square(self.layer(x) - 1.0))
        weights = self.layer.trainable_weights
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"error": loss}


def test_a_model_without_call_takes_every_length():
    expected, found = Steps(), Steps()
    found.layer.set_weights(expected.layer.get_weights())
    for model in (expected, found):
        model.compile("sgd")
    expected.fit(Lengths(), epochs=2, shuffle=False, verbose=0)
    kerasdist.fit(found, Lengths(), epochs=2, shuffle=False, devices=at_most(2))
    for one, other in zip(found.layer.get_weights(), expected.layer.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
