"""A convolutional denoising autoencoder, trained first on clean and then on noisy images."""

import keras
import numpy as np
from keras import layers
from keras.models import Model

keras.utils.set_random_seed(12)
rng = np.random.default_rng(12)


def preprocess(array):
    array = array.astype("float32") / 255.0
    return np.reshape(array, (len(array), 12, 12, 1))


def noise(array):
    noisy_array = array + 0.4 * rng.normal(loc=0.0, scale=1.0, size=array.shape)
    return np.clip(noisy_array, 0.0, 1.0)


train_data = preprocess(rng.integers(0, 255, (60, 12, 12)))
test_data = preprocess(rng.integers(0, 255, (20, 12, 12)))
noisy_train_data, noisy_test_data = noise(train_data), noise(test_data)

inputs = layers.Input(shape=(12, 12, 1))
x = layers.Conv2D(8, (3, 3), activation="relu", padding="same")(inputs)
x = layers.MaxPooling2D((2, 2), padding="same")(x)
x = layers.Conv2D(8, (3, 3), activation="relu", padding="same")(x)
x = layers.MaxPooling2D((2, 2), padding="same")(x)
x = layers.Conv2DTranspose(8, (3, 3), strides=2, activation="relu", padding="same")(x)
x = layers.Conv2DTranspose(8, (3, 3), strides=2, activation="relu", padding="same")(x)
x = layers.Conv2D(1, (3, 3), activation="sigmoid", padding="same")(x)
autoencoder = Model(inputs, x)
autoencoder.compile(optimizer="adam", loss="binary_crossentropy")

first = autoencoder.fit(
    x=train_data,
    y=train_data,
    epochs=1,
    batch_size=16,
    shuffle=False,
    validation_data=(test_data, test_data),
)
second = autoencoder.fit(
    x=noisy_train_data,
    y=train_data,
    epochs=2,
    batch_size=16,
    shuffle=False,
    validation_data=(noisy_test_data, test_data),
)
predictions = autoencoder.predict(noisy_test_data)
print(predictions.shape, first.history, second.history)
