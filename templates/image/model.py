"""A small convolutional network."""

from __future__ import annotations

import keras
from keras import ops

import kerasdist

from .data import CLASS_NAMES, num_examples


def build_model(config) -> kerasdist.Model:
    """The untrained network, compiled."""
    model = Network(config.width)
    steps = kerasdist.count_steps(num_examples(config), config.batch_size, config.epochs, None)
    model.compile(
        optimizer=kerasdist.optimizer(config, total_steps=steps),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


@keras.saving.register_keras_serializable("image")
class Network(kerasdist.Model):
    """Convolutions that halve the image and double the filters."""

    features = "image"
    targets = "label"

    def __init__(self, width: int = 16, **kwargs):
        super().__init__(**kwargs)
        self.width = width
        self.blocks = []
        for factor in (1, 2, 4):
            self.blocks += [
                keras.layers.Conv2D(factor * width, 3, padding="same", use_bias=False),
                keras.layers.BatchNormalization(momentum=0.9),
                keras.layers.ReLU(),
                keras.layers.MaxPooling2D(),
            ]
        self.pool = keras.layers.GlobalMaxPooling2D()
        self.logits = keras.layers.Dense(len(CLASS_NAMES), dtype="float32")

    def call(self, image, training=False):
        outputs = ops.cast(image, self.compute_dtype) / 128 - 1
        for block in self.blocks:
            outputs = block(outputs, training=training)
        return self.logits(self.pool(outputs))

    def get_config(self):
        return super().get_config() | {"width": self.width}
