"""An endless Python generator with `steps_per_epoch`, and one that ends by itself."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(52)


def endless(batch_size):
    rng = np.random.default_rng(52)
    while True:
        x = rng.normal(size=(batch_size, 5)).astype("float32")
        yield x, np.abs(x).sum(axis=1)


def ending(sizes):
    rng = np.random.default_rng(53)
    for size in sizes:
        x = rng.normal(size=(size, 5)).astype("float32")
        yield x, np.abs(x).sum(axis=1), np.linspace(0.5, 1, size)


model = keras.Sequential([layers.Dense(12, activation="relu"), layers.Dense(1)])
model.compile(optimizer="adam", loss="mae")
first = model.fit(
    endless(12),
    steps_per_epoch=4,
    epochs=2,
    validation_data=endless(9),
    validation_steps=2,
    verbose=2,
)
second = model.fit(ending([12, 12, 7]), epochs=1, verbose=2)
print(first.history, second.history)
test_loss = model.evaluate(ending([10, 3]), verbose=0)
predictions = model.predict(((x,) for x, _, _ in ending([6, 2])), verbose=0)
print(test_loss, predictions.shape)
