"""Transfer learning: a frozen base with BatchNorm, then fine-tuning with a low learning rate."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(33)
rng = np.random.default_rng(33)
images = rng.integers(0, 256, (58, 12, 12, 3)).astype("float32")
labels = (images.mean(axis=(1, 2, 3)) > 127.5).astype("int32")

base_inputs = keras.Input((12, 12, 3))
x = layers.Conv2D(8, 3, strides=2, use_bias=False)(base_inputs)
x = layers.BatchNormalization()(x)
x = layers.ReLU(6.0)(x)
x = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(x)
x = layers.BatchNormalization()(x)
base_model = keras.Model(base_inputs, layers.ReLU(6.0)(x), name="base")
# As if it came with pretrained statistics.
for weight in base_model.non_trainable_weights:
    weight.assign(np.abs(rng.normal(1.0, 0.2, weight.shape)))

base_model.trainable = False
inputs = keras.Input(shape=(12, 12, 3))
x = layers.Rescaling(scale=1 / 127.5, offset=-1)(inputs)
x = base_model(x, training=False)
x = layers.GlobalAveragePooling2D()(x)
outputs = layers.Dense(1)(x)
model = keras.Model(inputs, outputs)
model.summary(show_trainable=True)
model.compile(
    optimizer=keras.optimizers.Adam(),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy()],
)
history = model.fit(images, labels, epochs=2, batch_size=16, shuffle=False, verbose=2)

base_model.trainable = True
model.compile(
    optimizer=keras.optimizers.Adam(1e-5),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy()],
)
fine_tuning = model.fit(images, labels, epochs=1, batch_size=16, shuffle=False, verbose=2)
print(history.history, fine_tuning.history)
