"""A small convolutional network."""

from __future__ import annotations

import keras

import kerasdist


def build_model(config) -> keras.Model:
    """The untrained network, compiled."""
    image = keras.Input((*config.shape, 3), dtype="uint8", name="image")
    logits = keras.layers.Dense(len(config.class_names), dtype="float32", name="logits")
    model = keras.Model(image, logits(features(config, image)), name="images")
    steps = kerasdist.count_steps(config.num_train, config.batch_size, config.epochs)
    model.compile(
        optimizer=kerasdist.optimizer(config, total_steps=steps),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    return model


def features(config, image):
    """Convolutions that halve the image and double the filters."""
    layers = keras.layers
    outputs = layers.Rescaling(1 / 127.5, offset=-1)(image)
    side, filters = min(config.shape), config.width
    if side >= 64:  # A large image is halved at once, which takes a quarter of the time.
        outputs = layers.Conv2D(filters, 5, strides=2, padding="same", use_bias=False)(outputs)
        side //= 2
    else:
        outputs = layers.Conv2D(filters, 3, padding="same", use_bias=False)(outputs)
    while True:
        outputs = layers.BatchNormalization(momentum=0.9)(outputs)
        outputs = layers.ReLU()(outputs)
        outputs = layers.MaxPooling2D(padding="same")(outputs)
        side, filters = side // 2, 2 * filters
        if side < 4 or filters > 8 * config.width:
            break
        outputs = layers.Conv2D(filters, 3, padding="same", use_bias=False)(outputs)
    outputs = layers.GlobalMaxPooling2D()(outputs)
    return layers.Dropout(config.dropout)(outputs)
