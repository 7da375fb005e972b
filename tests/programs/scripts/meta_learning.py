"""Meta-learning (MAML): the gradient of the step goes through an inner loop on each task."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(58)
rng = np.random.default_rng(58)
floatx = keras.config.floatx()
inner_steps, inner_rate = 2, 0.05


class MetaLearner(keras.Model):
    """Each row of a batch is a task: its support and query points of one sine wave."""

    def __init__(self):
        super().__init__()
        self.hidden = layers.Dense(12, activation="tanh")
        self.out = layers.Dense(1)
        self.loss_tracker = keras.metrics.Mean(name="query_loss")

    @property
    def metrics(self):
        return [self.loss_tracker]

    def call(self, x):
        return self.out(self.hidden(x))

    def with_weights(self, x, weights):
        w1, b1, w2, b2 = weights
        hidden = tf.tanh(tf.einsum("tpi,tio->tpo", x, w1) + b1[:, None])
        return tf.einsum("tpi,tio->tpo", hidden, w2) + b2[:, None]

    def train_step(self, data):
        support_x, support_y, query_x, query_y = data
        num_tasks = tf.shape(support_x)[0]
        with tf.GradientTape() as outer:
            fast = [
                tf.repeat(tf.convert_to_tensor(v)[None], num_tasks, axis=0)
                for v in self.trainable_variables
            ]
            for _ in range(inner_steps):
                with tf.GradientTape() as inner:
                    inner.watch(fast)
                    error = self.with_weights(support_x, fast) - support_y
                    # A sum over tasks: each task's weights get the gradient of its own loss.
                    loss = tf.reduce_sum(tf.reduce_mean(tf.square(error), axis=[1, 2]))
                slopes = inner.gradient(loss, fast)
                fast = [w - inner_rate * slope for w, slope in zip(fast, slopes, strict=True)]
            error = self.with_weights(query_x, fast) - query_y
            query_loss = tf.reduce_mean(tf.square(error))
        grads = outer.gradient(query_loss, self.trainable_variables)
        self.optimizer.apply_gradients(zip(grads, self.trainable_variables, strict=True))
        self.loss_tracker.update_state(query_loss)
        return {m.name: m.result() for m in self.metrics}


phases = rng.uniform(0, 3, (42, 1, 1))
points = rng.uniform(-3, 3, (42, 10, 1))
waves = np.sin(points + phases)
tasks = [a.astype(floatx) for a in (points[:, :5], waves[:, :5], points[:, 5:], waves[:, 5:])]
dataset = tf.data.Dataset.from_tensor_slices(tuple(tasks)).batch(10)
model = MetaLearner()
model(tf.zeros((1, 1), dtype=floatx))
model.compile(optimizer=keras.optimizers.Adam(1e-2))
history = model.fit(dataset, epochs=3, verbose=0)
print(history.history)
