"""A bidirectional recurrent network that tells which digit was spoken."""

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
    """Recurrent layers in both directions over frames of sound; the padding changes nothing.

    Args:
        cell: "gru" or "lstm".
        units: Units of a layer in each direction.
        layers: Recurrent layers, one above the other.
        stack: Frames that make one step.
        dropout: Part of the values between layers that is left out.

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
        # In float32 also under mixed precision, because the softmax follows.
        self.logits = keras.layers.Dense(NUM_CLASSES, dtype=self.variable_dtype, name="logits")

    def call(self, frames, length, training=False):
        outputs, length = self.stacked(frames, ops.cast(length, "int32"))
        mask = _inside(outputs, length)
        outputs = self.norm(outputs)
        for layer, dropout in zip(self.recurrent, self.dropouts, strict=True):
            outputs = dropout(layer(outputs, mask=mask, training=training), training=training)
        return self.logits(self.pooled(outputs, mask, length))

    def stacked(self, frames, length):
        """`stack` frames in one step, and the number of steps; frames after the clip are zero."""
        frames = frames * ops.cast(_inside(frames, length), frames.dtype)[..., None]
        more = self.stack - 1
        padded = ops.pad(frames, [(0, 0), (0, more), (0, 0)])
        # Each frame and those after it; then one of `stack`. No shape is asked for, so that the
        # network can be exported as a functional model.
        after = [padded[:, i : (i - more) or None] for i in range(self.stack)]
        steps = ops.concatenate([part[:, :: self.stack] for part in after], axis=-1)
        return steps, (length + more) // self.stack

    def pooled(self, outputs, mask, length):
        """The mean and the largest of each value over the clip."""
        inside = ops.cast(mask, outputs.dtype)[..., None]
        mean = ops.sum(outputs * inside, axis=1) / ops.cast(length, outputs.dtype)[:, None]
        # Outputs are within -1 and 1.
        largest = ops.max(outputs * inside - 9 * (1 - inside), axis=1)
        return ops.concatenate([mean, largest], axis=-1)

    def defaults(self) -> dict[str, Any]:
        """For a training without the recipe's settings, such as one with a provider."""
        return {
            "optimizer": keras.optimizers.Adam(0.002),
            "loss": kerasdist.SmoothedCrossentropy(0.1),
            "metrics": ["accuracy"],
        }

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments, so that a saved model can be loaded."""
        return super().get_config() | {
            "cell": self.cell,
            "units": self.units,
            "layers": self.num_layers,
            "stack": self.stack,
            "dropout": self.dropout,
        }


def _inside(sequences, length):
    """Which steps belong to a clip: `[n, time]`."""
    number = ops.cumsum(ops.ones_like(sequences[:, :, 0], dtype="int32"), axis=1)
    return number <= length[:, None]
