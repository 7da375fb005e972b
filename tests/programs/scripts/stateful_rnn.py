"""A stateful LSTM: states pass from batch to batch and are reset by hand after each epoch."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(36)
rng = np.random.default_rng(36)
batch_size, steps, num_batches = 8, 5, 6
wave = np.sin(np.arange(batch_size * num_batches * steps + 1) * 0.3)
noise = rng.normal(0, 0.05, wave.shape)
series = wave + noise
# Row i of a batch continues row i of the batch before it.
x = series[:-1].reshape(batch_size, num_batches, steps, 1).swapaxes(0, 1)
y = series[1:].reshape(batch_size, num_batches, steps, 1).swapaxes(0, 1)
x, y = x.reshape(-1, steps, 1), y.reshape(-1, steps, 1)

model = keras.Sequential(
    [
        keras.Input(batch_shape=(batch_size, steps, 1)),
        layers.LSTM(8, stateful=True, return_sequences=True, name="memory"),
        layers.Dense(1),
    ]
)
model.compile(loss="mse", optimizer=keras.optimizers.Adam(1e-2))
losses = []
for _ in range(3):
    history = model.fit(x, y, batch_size=batch_size, epochs=1, shuffle=False, verbose=0)
    losses += history.history["loss"]
    model.get_layer("memory").reset_states()
print(losses)
predictions = model.predict(x, batch_size=batch_size, verbose=0)
print(predictions.shape)
