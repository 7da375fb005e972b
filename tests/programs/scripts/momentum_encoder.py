"""BYOL: an online network learns what a momentum encoder says about another view."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(15)
rng = np.random.default_rng(15)
floatx = keras.config.floatx()


def get_encoder():
    return keras.Sequential(
        [
            keras.Input((10,)),
            layers.Dense(16, activation="relu"),
            layers.LayerNormalization(),
            layers.Dense(8),
        ]
    )


class BYOL(keras.Model):
    def __init__(self, tau=0.95):
        super().__init__()
        self.online = get_encoder()
        self.predictor = keras.Sequential([keras.Input((8,)), layers.Dense(8)])
        self.target = get_encoder()
        self.target.trainable = False
        self.target.set_weights(self.online.get_weights())
        self.tau = tau
        self.loss_tracker = keras.metrics.Mean(name="loss")

    @property
    def metrics(self):
        return [self.loss_tracker]

    def call(self, inputs):
        return self.online(inputs)

    @staticmethod
    def regression_loss(p, z):
        p = tf.math.l2_normalize(p, axis=1)
        z = tf.math.l2_normalize(z, axis=1)
        return 2.0 - 2.0 * tf.reduce_sum(p * tf.stop_gradient(z), axis=1)

    def train_step(self, data):
        view_1, view_2 = data
        with tf.GradientTape() as tape:
            p_1 = self.predictor(self.online(view_1, training=True), training=True)
            p_2 = self.predictor(self.online(view_2, training=True), training=True)
            z_1 = self.target(view_1, training=False)
            z_2 = self.target(view_2, training=False)
            loss = tf.reduce_mean(self.regression_loss(p_1, z_2) + self.regression_loss(p_2, z_1))
        variables = self.online.trainable_variables + self.predictor.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, variables), variables, strict=True))
        for mine, theirs in zip(self.online.weights, self.target.weights, strict=True):
            theirs.assign(self.tau * theirs + (1.0 - self.tau) * mine)
        self.loss_tracker.update_state(loss)
        return {m.name: m.result() for m in self.metrics}


features = rng.normal(size=(61, 10)).astype(floatx)
views = tuple(features + 0.1 * rng.normal(size=features.shape).astype(floatx) for _ in range(2))
dataset = tf.data.Dataset.from_tensor_slices(views).batch(16).cache()
byol = BYOL()
byol.compile(optimizer=keras.optimizers.Adam(3e-3))
history = byol.fit(dataset, epochs=3, verbose=0)
embeddings = byol.predict(features, batch_size=32, verbose=0)
print(history.history["loss"], embeddings.shape)
