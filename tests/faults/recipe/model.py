"""Convolution, BatchNorm, dropout, L2, Adam with a schedule."""

import keras

import kerasdist


def build_model(config):
    return Small()


class Small(kerasdist.Model):
    features = "image"
    targets = "label"

    def __init__(self):
        super().__init__()
        self.conv = keras.layers.Conv2D(4, 3, kernel_regularizer="l2")
        self.norm = keras.layers.BatchNormalization()
        self.drop = keras.layers.Dropout(0.3)
        self.flat = keras.layers.Flatten()
        self.out = keras.layers.Dense(4)

    def call(self, image, training=False):
        hidden = self.norm(self.conv(image), training=training)
        return self.out(self.flat(self.drop(keras.ops.relu(hidden), training=training)))

    def defaults(self):
        return {
            "optimizer": keras.optimizers.Adam(keras.optimizers.schedules.CosineDecay(0.01, 100)),
            "loss": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "metrics": ["accuracy"],
        }
