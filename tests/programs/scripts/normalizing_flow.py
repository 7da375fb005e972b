"""RealNVP: coupling layers, a log-likelihood in `train_step` and `test_step`, on arrays."""

import math

import keras
import numpy as np
import tensorflow as tf
from keras import layers, ops

keras.utils.set_random_seed(70)
rng = np.random.default_rng(70)
angle = rng.uniform(0, math.pi, 80)
data = np.stack([np.cos(angle), np.sin(angle)], axis=1) + rng.normal(0, 0.1, (80, 2))
norm = layers.Normalization()
norm.adapt(data)
normalized_data = ops.convert_to_numpy(norm(data))


def coupling(width=12):
    inputs = keras.layers.Input(shape=(2,))
    t = layers.Dense(2)(layers.Dense(width, activation="relu")(inputs))
    s = layers.Dense(2, activation="tanh")(layers.Dense(width, activation="relu")(inputs))
    return keras.Model(inputs=inputs, outputs=[s, t])


class RealNVP(keras.Model):
    def __init__(self, num_coupling_layers):
        super().__init__()
        self.num_coupling_layers = num_coupling_layers
        self.masks = np.array([[0, 1], [1, 0]] * (num_coupling_layers // 2), dtype="float32")
        self.loss_tracker = keras.metrics.Mean(name="loss")
        self.layers_list = [coupling() for _ in range(num_coupling_layers)]

    @property
    def metrics(self):
        return [self.loss_tracker]

    def call(self, x, training=True):
        log_det_inv = 0
        direction = -1 if training else 1
        for i in range(self.num_coupling_layers)[::direction]:
            mask = ops.cast(self.masks[i], x.dtype)
            x_masked = x * mask
            s, t = self.layers_list[i](x_masked)
            s, t = s * (1 - mask), t * (1 - mask)
            gate = (direction - 1) / 2
            x = (1 - mask) * (
                x * ops.exp(direction * s) + direction * t * ops.exp(gate * s)
            ) + x_masked
            log_det_inv += gate * ops.sum(s, axis=1)
        return x, log_det_inv

    def log_loss(self, x):
        y, logdet = self(x)
        log_likelihood = -0.5 * ops.sum(y**2, axis=1) - math.log(2 * math.pi) + logdet
        return -ops.mean(log_likelihood)

    def train_step(self, data):
        with tf.GradientTape() as tape:
            loss = self.log_loss(data)
        g = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(g, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(loss)
        return {"loss": self.loss_tracker.result()}

    def test_step(self, data):
        self.loss_tracker.update_state(self.log_loss(data))
        return {"loss": self.loss_tracker.result()}


model = RealNVP(num_coupling_layers=4)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=1e-3))
history = model.fit(
    normalized_data, batch_size=20, epochs=2, verbose=2, validation_split=0.2, shuffle=False
)
z, _ = model(normalized_data)
print(ops.convert_to_numpy(z).mean(), history.history)
