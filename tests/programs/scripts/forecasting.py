"""Time-series forecasting: windows by `timeseries_dataset_from_array`, LayerNorm and Huber."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(39)
rng = np.random.default_rng(39)
time = np.arange(160)
series = np.stack([np.sin(time / 5), np.cos(time / 9), 0.01 * time], axis=1)
series += rng.normal(0, 0.1, series.shape)
series = (series - series[:120].mean(axis=0)) / series[:120].std(axis=0)
series = series.astype(keras.config.floatx())


def windows(data, past=12, future=3):
    return keras.utils.timeseries_dataset_from_array(
        data[:-future],
        data[past + future - 1 :, :1],
        sequence_length=past,
        sampling_rate=2,
        sequence_stride=1,
        batch_size=24,
    )


dataset_train, dataset_val = windows(series[:120]), windows(series[120:])
for batch in dataset_train.take(1):
    inputs, targets = batch
print("input shape:", inputs.numpy().shape, "target shape:", targets.numpy().shape)

inputs = layers.Input(shape=(inputs.shape[1], inputs.shape[2]))
x = layers.LSTM(10, return_sequences=True)(inputs)
x = layers.LayerNormalization()(x)
x = layers.Conv1D(8, 2, padding="causal", dilation_rate=2, activation="relu")(x)
x = layers.Flatten()(x)
outputs = layers.Dense(1)(x)
model = keras.Model(inputs=inputs, outputs=outputs)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.01), loss=keras.losses.Huber())
history = model.fit(dataset_train, epochs=2, validation_data=dataset_val, verbose=2)
forecast = model.predict(dataset_val, verbose=0)
print(forecast.shape, history.history)
