"""The endpoint pattern: the last layer takes the targets, adds the loss and updates a metric."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(68)
rng = np.random.default_rng(68)


class LogisticEndpoint(layers.Layer):
    def __init__(self, name=None):
        super().__init__(name=name)
        self.loss_fn = keras.losses.BinaryCrossentropy(from_logits=True)
        self.accuracy_metric = keras.metrics.BinaryAccuracy(name="accuracy", threshold=0.0)

    def call(self, logits, targets=None, sample_weight=None):
        if targets is not None:
            loss = self.loss_fn(targets, logits, sample_weight)
            self.add_loss(loss)
            self.accuracy_metric.update_state(targets, logits, sample_weight)
        return ops.softmax(logits)


inputs = keras.Input((5,), name="inputs")
targets = keras.Input((3,), name="targets")
logits = layers.Dense(3)(layers.Dense(10, activation="relu")(inputs))
preds = LogisticEndpoint(name="endpoint")(logits, targets)
model = keras.Model([inputs, targets], preds)

data = {
    "inputs": rng.random((53, 5)).astype("float32"),
    "targets": (rng.random((53, 3)) > 0.5).astype("float32"),
}
model.compile(keras.optimizers.Adam(1e-2))
history = model.fit(data, epochs=2, batch_size=20, shuffle=False, verbose=2)
print(history.history)
