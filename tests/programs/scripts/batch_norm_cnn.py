"""A convolutional network with BatchNormalization after each convolution."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(41)
rng = np.random.default_rng(41)
x_train = rng.random((68, 10, 10, 1)).astype("float32")
y_train = keras.utils.to_categorical(rng.integers(0, 4, 68), 4)

model = keras.Sequential(
    [
        keras.Input(shape=(10, 10, 1)),
        layers.Conv2D(6, 3, use_bias=False),
        layers.BatchNormalization(),
        layers.Activation("relu"),
        layers.MaxPooling2D(2),
        layers.Conv2D(8, 3, padding="same", use_bias=False),
        layers.BatchNormalization(momentum=0.9, scale=False),
        layers.Activation("relu"),
        layers.Flatten(),
        layers.Dense(4, activation="softmax"),
    ]
)
model.compile(loss="categorical_crossentropy", optimizer="adam", metrics=["accuracy"])
history = model.fit(
    x_train, y_train, batch_size=16, epochs=2, validation_split=0.1, shuffle=False, verbose=2
)
score = model.evaluate(x_train, y_train, verbose=0)
print("loss:", score[0], "accuracy:", score[1])
