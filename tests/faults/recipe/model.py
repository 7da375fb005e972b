"""Convolution, BatchNorm, dropout, L2, Adam with a schedule."""

import os

import keras
import tensorflow as tf

import kerasdist


def build_model(config):
    return Small(config.trained_on)


class Small(kerasdist.Model):
    features = ("image", "index")
    targets = "label"

    def __init__(self, trained_on=""):
        super().__init__()
        self.trained_on = trained_on
        self.conv = keras.layers.Conv2D(4, 3, kernel_regularizer="l2")
        self.norm = keras.layers.BatchNormalization()
        self.drop = keras.layers.Dropout(0.3)
        self.flat = keras.layers.Flatten()
        self.out = keras.layers.Dense(4)

    def call(self, image, index, training=False):
        # Eagerly, kerasdist only looks whether the model can be cut. It trains in a graph.
        if training and self.trained_on and not tf.executing_eagerly():
            # Here and not where data is read: what was read ahead may never be trained on.
            noted = tf.py_function(self._note, [index], tf.bool)
            with tf.control_dependencies([noted]):
                image = tf.identity(image)
        hidden = self.norm(self.conv(image), training=training)
        return self.out(self.flat(self.drop(keras.ops.relu(hidden), training=training)))

    def _note(self, index):
        """Appends a line in one write: a kill leaves whole lines."""
        line = f"{os.getpid()} {' '.join(map(str, index.numpy().tolist()))}\n"
        file = os.open(self.trained_on, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(file, line.encode())
        finally:
            os.close(file)
        return True

    def defaults(self):
        return {
            "optimizer": keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.01, 100)),
            "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "metrics": ["accuracy"],
        }
