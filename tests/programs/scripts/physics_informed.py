"""A physics-informed network: second derivatives by its inputs, inside `train_step`."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(57)
rng = np.random.default_rng(57)
floatx = keras.config.floatx()


class Oscillator(keras.Model):
    """Solves u'' + 4 u = 0 with u(0) = 1 and u'(0) = 0."""

    def __init__(self):
        super().__init__()
        self.body = keras.Sequential(
            [
                keras.Input((1,)),
                layers.Dense(16, activation="tanh"),
                layers.Dense(16, activation="tanh"),
                layers.Dense(1),
            ]
        )
        self.residual_tracker = keras.metrics.Mean(name="residual")
        self.start_tracker = keras.metrics.Mean(name="start")

    @property
    def metrics(self):
        return [self.residual_tracker, self.start_tracker]

    def call(self, t):
        return self.body(t)

    def derivatives(self, t):
        with tf.GradientTape() as outer:
            outer.watch(t)
            with tf.GradientTape() as inner:
                inner.watch(t)
                u = self(t)
            first = inner.gradient(u, t)
        return u, first, outer.gradient(first, t)

    def train_step(self, t):
        with tf.GradientTape() as tape:
            u, _, second = self.derivatives(t)
            residual = tf.reduce_mean(tf.square(second + 4.0 * u))
            u_start, slope_start, _ = self.derivatives(tf.zeros_like(t[:1]))
            start = tf.reduce_sum(tf.square(u_start - 1.0) + tf.square(slope_start))
            loss = residual + 10.0 * start
        grads = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
        self.residual_tracker.update_state(residual)
        self.start_tracker.update_state(start)
        return {m.name: m.result() for m in self.metrics}


times = rng.uniform(0, 1.5, (60, 1)).astype(floatx)
dataset = tf.data.Dataset.from_tensor_slices(times).batch(16)
model = Oscillator()
model.compile(optimizer=keras.optimizers.Adam(5e-3))
history = model.fit(dataset, epochs=3, verbose=0)
solution = model.predict(np.linspace(0, 1, 5)[:, None].astype(floatx), verbose=0)
print(solution.ravel(), history.history)
