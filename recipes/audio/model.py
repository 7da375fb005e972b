"""A bidirectional recurrent network that recognizes spoken digits."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

import kerasdist

NUM_CLASSES = 10
PACKAGE = "kerasdist.recipes.audio"


def build_model(config) -> kerasdist.Model:
    """Returns the untrained network of `config`, compiled.

    Args:
        config: The recipe's `Config`.

    Example:
        >>> build_model(Config(units=8, source="synthetic")).units
        8
    """
    from .data import num_examples

    model = AudioRNN(config.cell, config.units, config.layers, config.stack, config.dropout)
    steps = kerasdist.count_steps(
        num_examples(config), config.batch_size, config.epochs, config.steps
    )
    model.compile(
        optimizer=kerasdist.optimizer(config, total_steps=steps),
        loss=kerasdist.SmoothedCrossentropy(config.label_smoothing),
        metrics=["accuracy"],
    )
    return model


@keras.saving.register_keras_serializable(PACKAGE)
class AudioRNN(kerasdist.Model):
    """Bidirectional recurrent layers over frames of sound. Padding does not change the result.

    Args:
        cell: "gru" or "lstm".
        units: Units per layer and direction.
        layers: The number of recurrent layers.
        stack: Frames per step.
        dropout: The dropout rate between layers.

    Example:
        >>> import numpy as np
        >>> frames, length = np.zeros((2, 7, 80), "float32"), np.array([7, 3], "int32")
        >>> AudioRNN(units=4)(frames, length).shape
        TensorShape([2, 10])
    """

    features = ("frames", "length")
    targets = "label"

    def __init__(
        self,
        cell: str = "gru",
        units: int = 96,
        layers: int = 2,
        stack: int = 2,
        dropout: float = 0.3,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.cell, self.units, self.num_layers = cell, units, layers
        self.stack, self.dropout = stack, dropout
        kind = {"gru": keras.layers.GRU, "lstm": keras.layers.LSTM}[cell]
        self.norm = keras.layers.LayerNormalization(name="norm")
        self.recurrent = [
            keras.layers.Bidirectional(
                kind(units, return_sequences=True, name=f"{cell}{i}"), name=f"both{i}"
            )
            for i in range(1, layers + 1)
        ]
        self.dropouts = [
            keras.layers.Dropout(dropout, name=f"dropout{i}") for i in range(1, layers + 1)
        ]
        # float32 even under mixed precision, because a softmax follows.
        self.logits = keras.layers.Dense(NUM_CLASSES, dtype=self.variable_dtype, name="logits")

    def call(self, frames, length, training=False):
        outputs, length = self.stacked(frames, ops.cast(length, "int32"))
        mask = _inside(outputs, length)
        outputs = self.norm(outputs)
        for layer, dropout in zip(self.recurrent, self.dropouts, strict=True):
            outputs = dropout(layer(outputs, mask=mask, training=training), training=training)
        return self.logits(self.pooled(outputs, mask, length))

    def stacked(self, frames, length):
        """Joins `stack` frames to one step, and counts the steps. Padding becomes zero."""
        frames = frames * ops.cast(_inside(frames, length), frames.dtype)[..., None]
        more = self.stack - 1
        padded = ops.pad(frames, [(0, 0), (0, more), (0, 0)])
        # Join each frame with those after it, then take one of every `stack`. This does not read
        # the shape, so the network can be exported as a functional model.
        after = [padded[:, i : (i - more) or None] for i in range(self.stack)]
        steps = ops.concatenate([part[:, :: self.stack] for part in after], axis=-1)
        return steps, (length + more) // self.stack

    def pooled(self, outputs, mask, length):
        """The mean and the maximum of each value over the clip."""
        inside = ops.cast(mask, outputs.dtype)[..., None]
        mean = ops.sum(outputs * inside, axis=1) / ops.cast(length, outputs.dtype)[:, None]
        # Outputs are between -1 and 1, so -9 never is the maximum.
        largest = ops.max(outputs * inside - 9 * (1 - inside), axis=1)
        return ops.concatenate([mean, largest], axis=-1)

    def defaults(self) -> dict[str, Any]:
        """What `compile` gets without the recipe's settings, for example with a provider."""
        return {
            "optimizer": keras.optimizers.Adam(0.002),
            "loss": kerasdist.SmoothedCrossentropy(0.1),
            "metrics": ["accuracy"],
        }

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor. Loading a saved model needs them."""
        return super().get_config() | {
            "cell": self.cell,
            "units": self.units,
            "layers": self.num_layers,
            "stack": self.stack,
            "dropout": self.dropout,
        }


def _inside(sequences, length):
    """Whether each step belongs to the clip: bool `[n, time]`."""
    number = ops.cumsum(ops.ones_like(sequences[:, :, 0], dtype="int32"), axis=1)
    return number <= length[:, None]
