"""Small models for the audit: stacks of Keras's layers.

Each entry of `MODELS` is a function that returns a `Case`. Its `build` makes a compiled model, with
the dtype policy of the moment.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import keras
import numpy as np

L = keras.layers
ROWS = 16


@dataclass(frozen=True)
class Case:
    """What to train: a model, data, and arguments of `fit`."""

    build: Callable[[], keras.Model]
    data: Any
    options: dict[str, Any] = field(default_factory=dict)


def normal(*shape):
    return np.random.default_rng(0).normal(size=(ROWS, *shape)).astype("float32")


def uniform(*shape):
    return np.random.default_rng(1).uniform(size=(ROWS, *shape)).astype("float32")


def integers(count, *shape, low=0):
    return np.random.default_rng(2).integers(low, count, size=(ROWS, *shape)).astype("int32")


MODELS: dict[str, Callable[[], Case]] = {}


def classifier(layers, x, *, optimizer="adam", metrics=("accuracy",), classes=3, **options):
    """A classifier: `layers()` of the input, then logits."""

    def build():
        inputs = keras.Input(x.shape[1:], dtype=x.dtype.name)
        outputs = inputs
        for layer in layers():
            outputs = layer(outputs)
        model = keras.Model(inputs, L.Dense(classes, dtype="float32")(outputs))
        made = optimizer() if callable(optimizer) else optimizer
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(made, loss, metrics=list(metrics))
        return model

    return Case(build, (x, integers(classes)), options)


def stack(name, layers, x, **options):
    """A classifier with a name."""
    MODELS[name] = lambda: classifier(layers, x(), **options)


def pooled(*layers):
    return [*layers, L.GlobalAveragePooling2D()]


stack("mlp", lambda: [L.Dense(16, activation="relu"), L.Dropout(0.2)], lambda: normal(8))
stack("mlp_four_shards", lambda: [L.Dense(16), L.Dropout(0.2)], lambda: normal(8), shards=4)
stack("mlp_clip_norm", lambda: [L.Dense(300)], lambda: normal(300), clip_norm=1.0)
stack("mlp_small_clip_norm", lambda: [L.Dense(16)], lambda: normal(8), clip_norm=1.0)
stack("mlp_ema", lambda: [L.Dense(300)], lambda: normal(300), ema=0.99)
stack("mlp_small_ema", lambda: [L.Dense(16)], lambda: normal(8), ema=0.99)
stack(
    "mlp_class_weight",
    lambda: [L.Dense(16)],
    lambda: normal(8),
    class_weight={0: 1.0, 1: 2.0, 2: 0.5},
)
stack(
    "conv_batch_norm",
    lambda: pooled(L.Conv2D(8, 3), L.BatchNormalization(), L.ReLU(), L.MaxPooling2D()),
    lambda: uniform(12, 12, 3),
)
stack(
    "separable_transposed",
    lambda: pooled(
        L.SeparableConv2D(8, 3, padding="same"),
        L.DepthwiseConv2D(3, strides=2, padding="same"),
        L.Conv2DTranspose(4, 3, strides=2),
        L.AveragePooling2D(2),
        L.UpSampling2D(interpolation="bilinear"),
    ),
    lambda: uniform(12, 12, 3),
)
stack(
    "group_norm",
    lambda: pooled(
        L.Conv2D(8, 3), L.GroupNormalization(4), L.UnitNormalization(), L.PReLU(), L.ZeroPadding2D()
    ),
    lambda: uniform(12, 12, 3),
)
stack(
    "conv1d",
    lambda: [
        L.Conv1D(8, 3, padding="causal", activation="gelu"),
        L.SeparableConv1D(8, 3),
        L.Conv1DTranspose(4, 3),
        L.MaxPooling1D(),
        L.GlobalMaxPooling1D(),
    ],
    lambda: normal(16, 4),
)
stack(
    "conv3d",
    lambda: [
        L.Conv3D(4, 2, activation="swish"),
        L.Conv3DTranspose(2, 2),
        L.GlobalAveragePooling3D(),
    ],
    lambda: normal(6, 6, 6, 2),
)
stack(
    "noise",
    lambda: [
        L.SpatialDropout1D(0.2),
        L.GaussianNoise(0.1),
        L.GaussianDropout(0.1),
        L.AlphaDropout(0.1),
        L.Flatten(),
    ],
    lambda: normal(6, 4),
)
stack("gru", lambda: [L.GRU(8)], lambda: normal(6, 4))
stack("lstm", lambda: [L.LSTM(8, return_sequences=True), L.LSTM(8)], lambda: normal(6, 4))
stack(
    "simple_rnn", lambda: [L.SimpleRNN(8, dropout=0.1, recurrent_dropout=0.1)], lambda: normal(6, 4)
)
stack("bidirectional", lambda: [L.Bidirectional(L.LSTM(4))], lambda: normal(6, 4))
stack(
    "masked_gru",
    lambda: [L.Embedding(20, 8, mask_zero=True), L.GRU(8, return_sequences=True), L.LSTM(4)],
    lambda: integers(20, 6),
)
stack("conv_lstm", lambda: pooled(L.ConvLSTM2D(4, 3)), lambda: normal(3, 6, 6, 2))
stack(
    "time_distributed",
    lambda: [L.Masking(), L.TimeDistributed(L.Dense(4)), L.Flatten()],
    lambda: normal(6, 4),
)
stack(
    "preprocessing",
    lambda: [
        L.CategoryEncoding(12, output_mode="multi_hot"),
        L.Normalization(mean=0.1, variance=2.0),
        L.Rescaling(2.0, 0.5),
        L.Dense(8),
    ],
    lambda: integers(12, 4),
)
stack("hashing", lambda: [L.Hashing(10), L.Embedding(10, 4), L.Flatten()], lambda: integers(50, 4))
stack(
    "discretization",
    lambda: [L.Discretization([0.0, 0.5, 1.0]), L.Embedding(4, 4), L.Flatten()],
    lambda: normal(4),
)
stack(
    "augmentation",
    lambda: pooled(
        L.Rescaling(1 / 255),
        L.RandomFlip(),
        L.RandomRotation(0.1),
        L.RandomZoom(0.1),
        L.RandomTranslation(0.1, 0.1),
        L.RandomContrast(0.1),
        L.RandomBrightness(0.1, value_range=(0, 1)),
        L.Resizing(10, 10),
        L.CenterCrop(8, 8),
        L.Conv2D(4, 3),
    ),
    lambda: uniform(12, 12, 3) * 255,
)
