"""A convolutional network with BatchNormalization(synchronized=True)."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

keras.utils.set_random_seed(42)
rng = np.random.default_rng(42)
images = rng.normal(size=(57, 10, 10, 2)).astype(keras.config.floatx())
labels = rng.integers(0, 3, 57)
train = tf.data.Dataset.from_tensor_slices((images, labels)).batch(16)


def conv_block(x, filters):
    shortcut = layers.Conv2D(filters, 1, strides=2)(x)
    x = layers.Conv2D(filters, 3, strides=2, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization(synchronized=True)(x)
    x = layers.Activation("relu")(x)
    return layers.Add()([x, shortcut])


inputs = keras.Input((10, 10, 2))
x = conv_block(conv_block(inputs, 6), 8)
x = layers.GlobalAveragePooling2D()(x)
outputs = layers.Dense(3)(x)
model = keras.Model(inputs, outputs)
model.compile(
    optimizer=keras.optimizers.SGD(0.05, momentum=0.9),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)
history = model.fit(train, epochs=2, validation_data=train, verbose=2)
print(history.history)
