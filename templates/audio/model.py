"""A recurrent network over frames of sound."""

from __future__ import annotations

import keras
from keras import ops

import kerasdist

from .data import CLASS_NAMES, num_examples


def build_model(config) -> kerasdist.Model:
    """The untrained network, compiled."""
    model = Network(config.units)
    steps = kerasdist.count_steps(num_examples(config), config.batch_size, config.epochs, None)
    model.compile(
        optimizer=kerasdist.optimizer(config, total_steps=steps),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


@keras.saving.register_keras_serializable("audio")
class Network(kerasdist.Model):
    """A bidirectional GRU. The mask keeps it from reading the padding of a batch."""

    features = ("frames", "length")
    targets = "label"

    def __init__(self, units: int = 32, **kwargs):
        super().__init__(**kwargs)
        self.units = units
        self.recurrent = keras.layers.Bidirectional(keras.layers.GRU(units))
        self.logits = keras.layers.Dense(len(CLASS_NAMES), dtype="float32")

    def call(self, frames, length, training=False):
        number = ops.cumsum(ops.ones_like(frames[:, :, 0], dtype="int32"), axis=1)
        mask = number <= ops.cast(length, "int32")[:, None]
        return self.logits(self.recurrent(frames, mask=mask, training=training))

    def get_config(self):
        return super().get_config() | {"units": self.units}
