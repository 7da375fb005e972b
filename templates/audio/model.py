"""A small convolutional network over the frequencies of a sound."""

from __future__ import annotations

import keras

import kerasdist


def build_model(config) -> keras.Model:
    """The untrained network, compiled."""
    length = kerasdist.SoundReader(config.rate, config.seconds).length
    samples = keras.Input((length,), name="samples")
    logits = keras.layers.Dense(len(config.class_names), dtype="float32", name="logits")
    model = keras.Model(samples, logits(features(config, samples)), name="sounds")
    steps = kerasdist.count_steps(config.num_train, config.batch_size, config.epochs)
    model.compile(
        optimizer=kerasdist.optimizer(config, total_steps=steps),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def features(config, samples):
    """Convolutions over time and frequency, then the mean and the maximum over both."""
    layers = keras.layers
    outputs = kerasdist.LogMel(config.rate, config.mels)(samples)
    outputs = layers.Reshape((*outputs.shape[1:], 1))(outputs)
    for factor, strides in ((1, (2, 1)), (2, 1), (4, 1)):  # Time is halved at once.
        outputs = layers.Conv2D(
            factor * config.width, 3, strides=strides, padding="same", use_bias=False
        )(outputs)
        outputs = layers.BatchNormalization(momentum=0.9)(outputs)
        outputs = layers.ReLU()(outputs)
        outputs = layers.MaxPooling2D(padding="same")(outputs)
    outputs = layers.Concatenate()(
        [layers.GlobalAveragePooling2D()(outputs), layers.GlobalMaxPooling2D()(outputs)]
    )
    return layers.Dropout(config.dropout)(outputs)
