"""Image classification with random augmentation layers inside the model and dropout."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(40)
rng = np.random.default_rng(40)
x_train = rng.integers(0, 256, (56, 12, 12, 3)).astype("uint8")
y_train = rng.integers(0, 3, (56,))

data_augmentation = keras.Sequential(
    [
        layers.RandomFlip("horizontal"),
        layers.RandomContrast(0.2),
        layers.RandomTranslation(0.1, 0.1),
    ],
    name="data_augmentation",
)
inputs = keras.Input(shape=(12, 12, 3))
x = data_augmentation(inputs)
x = layers.Rescaling(1.0 / 255)(x)
x = layers.Conv2D(8, 3, strides=2, padding="same", activation="relu")(x)
x = layers.SpatialDropout2D(0.1)(x)
x = layers.GlobalAveragePooling2D()(x)
x = layers.Dropout(0.25)(x)
outputs = layers.Dense(3, activation=None)(x)
model = keras.Model(inputs, outputs)
model.compile(
    optimizer=keras.optimizers.Adam(3e-4),
    loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=[keras.metrics.SparseCategoricalAccuracy(name="acc")],
)
history = model.fit(
    x_train, y_train, batch_size=16, epochs=2, validation_split=0.25, shuffle=False, verbose=2
)
predictions = model.predict(x_train[:4], verbose=0)
score = keras.ops.softmax(predictions[0])
print("scores:", score.numpy())
