"""A PyDataset that loads batches by index with workers, and changes at the end of each epoch."""

import math

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(51)


class Measurements(keras.utils.PyDataset):
    def __init__(self, count, batch_size, **kwargs):
        super().__init__(**kwargs)
        rng = np.random.default_rng(count)
        self.x = rng.normal(size=(count, 4)).astype("float32")
        self.y = (self.x**2).sum(axis=1, keepdims=True)
        self.batch_size = batch_size
        self.scale = 1.0

    def __len__(self):
        return math.ceil(len(self.x) / self.batch_size)

    def __getitem__(self, idx):
        low = idx * self.batch_size
        high = min(low + self.batch_size, len(self.x))
        return self.scale * self.x[low:high], self.y[low:high]

    def on_epoch_end(self):
        self.scale += 0.5


inputs = keras.Input((4,))
outputs = layers.Dense(1)(layers.Dense(12, activation="softplus")(inputs))
model = keras.Model(inputs, outputs)
model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="mse", metrics=["mae"])
training_data = Measurements(62, 12)
validation_data = Measurements(17, 12, workers=2, use_multiprocessing=False, max_queue_size=4)
history = model.fit(training_data, epochs=3, shuffle=False, validation_data=validation_data)
errors = model.evaluate(validation_data, verbose=0)
scale = training_data.scale
print(history.history, errors, scale)
