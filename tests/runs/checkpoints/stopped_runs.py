"""Fits that are stopped at some steps and resumed, to compare with fits that were not."""

import json

import keras
import numpy as np
import pytest

import kerasdist

TIMES = ("examples_per_second", "input_wait")
RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(50, 4)).astype("float32")
Y = RANDOM.integers(0, 3, 50)


def build():
    model = keras.Sequential(
        [
            keras.layers.Dense(6),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.05), loss, metrics=["accuracy"])
    return model


class StopAt(keras.callbacks.Callback):
    """Ends the process's training as an error would, at a step."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == self.step:
            raise ZeroDivisionError


def fit(folder, data=(X, Y), **options):
    # One shard a device compiles sooner than the four of `deterministic`.
    shards = options.get("devices", 1)
    defaults = {
        "devices": 1,
        "batch_size": 8,
        "epochs": 4,
        "save_every": 3,
        "seed": 0,
        "shards": shards,
        "progress": False,
    }
    return kerasdist.fit(build, data, run_dir=folder, **{**defaults, **options})


def interrupted(folder, steps, data=(X, Y), callbacks=(), **options):
    """A fit that was stopped at each of `steps`, then finished."""
    for step in steps:
        with pytest.raises(ZeroDivisionError):
            fit(folder, data, callbacks=[*callbacks, StopAt(step)], **options)
    return fit(folder, data, callbacks=list(callbacks), **options)


def digest(folder):
    return json.loads((folder / "result.json").read_text())["weights_sha256"]
