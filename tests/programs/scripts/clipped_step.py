"""A `train_step` in the generic style that clips the gradients' global norm before the update."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(67)
rng = np.random.default_rng(67)


class ClippedModel(keras.Model):
    def train_step(self, data):
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x=x, y=y, y_pred=y_pred, sample_weight=sample_weight)
        gradients = tape.gradient(loss, self.trainable_variables)
        gradients, norm = tf.clip_by_global_norm(gradients, 0.5)
        self.optimizer.apply(gradients, self.trainable_variables)
        logs = self.compute_metrics(x, y, y_pred, sample_weight=sample_weight)
        logs["loss"] = loss
        logs["gradient_norm"] = norm
        return logs


x = rng.normal(size=(73, 6)).astype("float32")
y = 3 * np.sin(x).sum(axis=1, keepdims=True)
inputs = keras.Input(shape=(6,))
hidden = layers.Dense(16, activation="relu", kernel_regularizer=keras.regularizers.L2(1e-3))(inputs)
model = ClippedModel(inputs, layers.Dense(1)(hidden))
model.compile(optimizer="adam", loss="mse", metrics=["mae"])
weights = np.linspace(0.2, 1.8, 73)
history = model.fit(x, y, sample_weight=weights, epochs=3, batch_size=20, shuffle=False, verbose=2)
scores = model.evaluate(x, y, verbose=0, return_dict=True)
print(scores, history.history)
