"""A short deterministic training, run by the tests with two sets of versions.

python training.py EPOCHS RUN_DIR WEIGHTS.npz [DEVICES]
"""

import sys

import keras
import numpy as np

import kerasdist


def main(epochs, run_dir, weights, devices="2"):
    kerasdist.logical_cpus(2)
    keras.utils.set_random_seed(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(8, 3, activation="relu"),
            layers.BatchNormalization(),
            layers.Dropout(0.2),
            layers.Reshape((6, 48)),
            layers.GRU(12),
            layers.Dense(5),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.AdamW(0.01), loss, metrics=["accuracy"])
    random = np.random.default_rng(1)
    x = random.normal(size=(200, 8, 8, 3)).astype("float32")
    y = random.integers(5, size=200)
    kerasdist.fit(
        model,
        x,
        y,
        batch_size=32,
        epochs=int(epochs),
        run_dir=run_dir,
        deterministic=True,
        devices=int(devices),
        seed=4,
    )
    np.savez(weights, *model.get_weights())
    import tensorflow as tf

    print("versions", tf.__version__, keras.__version__)


if __name__ == "__main__":
    main(*sys.argv[1:])
