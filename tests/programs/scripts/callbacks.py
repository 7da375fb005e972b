"""Callbacks: early stopping, plateaus, checkpoints, a CSV log, lambdas and one of our own."""

import csv
import os
import tempfile

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(47)
rng = np.random.default_rng(47)
x = rng.normal(size=(78, 6)).astype("float32")
y = (x[:, :1] * x[:, 1:2] + rng.normal(0, 0.3, (78, 1))).astype("float32")


class LossAndErrorPrintingCallback(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.batches = 0
        self.rates = []

    def on_train_begin(self, logs=None):
        print("starting with", sorted(logs or {}))

    def on_train_batch_end(self, batch, logs=None):
        self.batches += 1
        assert "loss" in logs

    def on_epoch_end(self, epoch, logs=None):
        self.rates.append(float(self.model.optimizer.learning_rate))
        print(f"epoch {epoch}: loss {logs['loss']:7.2f}, mae {logs['mae']:7.2f}")

    def on_test_end(self, logs=None):
        print("validated")


model = keras.Sequential([keras.Input((6,)), layers.Dense(24, activation="relu"), layers.Dense(1)])
model.compile(optimizer=keras.optimizers.Adam(0.05), loss="mse", metrics=["mae"])
epochs_seen = []
with tempfile.TemporaryDirectory() as folder:
    best = os.path.join(folder, "best.weights.h5")
    log = os.path.join(folder, "log.csv")
    printing = LossAndErrorPrintingCallback()
    history = model.fit(
        x,
        y,
        batch_size=16,
        epochs=12,
        shuffle=False,
        validation_split=0.3,
        verbose=0,
        callbacks=[
            keras.callbacks.EarlyStopping(patience=3, restore_best_weights=True),
            keras.callbacks.ReduceLROnPlateau(factor=0.5, patience=1, verbose=1),
            keras.callbacks.ModelCheckpoint(best, save_best_only=True, save_weights_only=True),
            keras.callbacks.CSVLogger(log),
            keras.callbacks.LambdaCallback(on_epoch_end=lambda e, logs: epochs_seen.append(e)),
            keras.callbacks.TerminateOnNaN(),
            printing,
        ],
    )
    with open(log) as file:
        logged = [float(row["val_loss"]) for row in csv.DictReader(file)]
    final = model.evaluate(x, y, verbose=0)
    model.load_weights(best)
    restored = model.evaluate(x, y, verbose=0)
num_batches, learning_rates = printing.batches, printing.rates
print(final, restored, logged, epochs_seen, num_batches, learning_rates)
