"""Anomaly detection: an autoencoder of windows; the reconstruction error gives a threshold."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(60)
rng = np.random.default_rng(60)
time_steps = 16
signal = np.sin(np.arange(140) * 0.4) + rng.normal(0, 0.05, 140)
training_mean, training_std = signal.mean(), signal.std()
normalized = (signal - training_mean) / training_std


def create_sequences(values):
    windows = [values[i : i + time_steps] for i in range(len(values) - time_steps + 1)]
    return np.stack(windows)[..., None]


x_train = create_sequences(normalized)
model = keras.Sequential(
    [
        layers.Input(shape=(x_train.shape[1], x_train.shape[2])),
        layers.Conv1D(filters=8, kernel_size=7, padding="same", strides=2, activation="relu"),
        layers.Conv1D(filters=4, kernel_size=7, padding="same", strides=2, activation="relu"),
        layers.Conv1DTranspose(filters=4, kernel_size=7, padding="same", strides=2),
        layers.Conv1DTranspose(filters=8, kernel_size=7, padding="same", strides=2),
        layers.Conv1DTranspose(filters=1, kernel_size=7, padding="same"),
    ]
)
model.compile(optimizer=keras.optimizers.Adam(learning_rate=0.001), loss="mse")
history = model.fit(
    x_train,
    x_train,
    epochs=3,
    batch_size=32,
    shuffle=False,
    validation_split=0.1,
    callbacks=[keras.callbacks.EarlyStopping(monitor="val_loss", patience=5, mode="min")],
    verbose=2,
)
x_train_pred = model.predict(x_train, verbose=0)
train_mae_loss = np.mean(np.abs(x_train_pred - x_train), axis=1)
threshold = np.max(train_mae_loss)
broken = normalized.copy()
broken[60:70] += 4
test_mae_loss = np.mean(
    np.abs(model.predict(create_sequences(broken), verbose=0) - x_train), axis=1
)
anomalies = test_mae_loss > threshold
print("threshold:", threshold, "anomalies:", anomalies.sum())
