"""Imbalanced classification: class weights in one fit, sample weights in the next."""

import keras
import numpy as np
from keras import layers

keras.utils.set_random_seed(46)
rng = np.random.default_rng(46)
features = rng.normal(size=(94, 6)).astype("float32")
targets = (features.sum(axis=1, keepdims=True) > 3.5).astype("uint8")
counts = np.bincount(targets[:, 0])
weight_for_0, weight_for_1 = 1.0 / counts[0], 1.0 / counts[1]
train, val = slice(0, 74), slice(74, 94)

model = keras.Sequential(
    [
        keras.Input(shape=(6,)),
        layers.Dense(16, activation="relu"),
        layers.Dense(16, activation="relu"),
        layers.Dense(1, activation="sigmoid"),
    ]
)
metrics = [
    keras.metrics.FalseNegatives(name="fn"),
    keras.metrics.TruePositives(name="tp"),
    keras.metrics.Precision(name="precision"),
    keras.metrics.Recall(name="recall"),
]
model.compile(optimizer=keras.optimizers.Adam(1e-2), loss="binary_crossentropy", metrics=metrics)
class_history = model.fit(
    features[train],
    targets[train],
    batch_size=20,
    epochs=2,
    shuffle=False,
    verbose=2,
    validation_data=(features[val], targets[val]),
    class_weight={0: weight_for_0 * 50, 1: weight_for_1 * 50},
)

sample_weight = np.where(targets[:, 0] == 1, 3.0, 0.5)
model.compile(
    optimizer=keras.optimizers.Adam(1e-2),
    loss="binary_crossentropy",
    metrics=["accuracy"],
    weighted_metrics=["accuracy"],
)
sample_history = model.fit(
    features[train],
    targets[train],
    batch_size=20,
    epochs=2,
    shuffle=False,
    sample_weight=sample_weight[train],
    validation_data=(features[val], targets[val], sample_weight[val]),
    verbose=2,
)
scores = model.evaluate(features, targets, sample_weight=sample_weight, verbose=0)
print(scores, class_history.history["recall"], sample_history.history)
