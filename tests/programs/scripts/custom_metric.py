"""A metric class with its own state, and one that keeps a maximum."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(45)
rng = np.random.default_rng(45)


class CategoricalTruePositives(keras.metrics.Metric):
    def __init__(self, name="categorical_true_positives", **kwargs):
        super().__init__(name=name, **kwargs)
        self.true_positives = self.add_variable(shape=(), initializer="zeros", name="ctp")

    def update_state(self, y_true, y_pred, sample_weight=None):
        y_pred = ops.reshape(ops.argmax(y_pred, axis=1), (-1, 1))
        values = ops.equal(ops.cast(y_true, "int32"), ops.cast(y_pred, "int32"))
        values = ops.cast(values, self.dtype)
        if sample_weight is not None:
            values = values * ops.cast(sample_weight, self.dtype)
        self.true_positives.assign_add(ops.sum(values))

    def result(self):
        return self.true_positives

    def reset_state(self):
        self.true_positives.assign(0.0)


class LargestLogit(keras.metrics.Metric):
    def __init__(self, name="largest_logit", **kwargs):
        super().__init__(name=name, **kwargs)
        self.largest = self.add_variable(shape=(), initializer="zeros", name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.largest.assign(ops.maximum(self.largest, ops.cast(ops.max(y_pred), self.dtype)))

    def result(self):
        return self.largest


x = rng.normal(size=(87, 8)).astype("float32")
y = rng.integers(0, 4, (87, 1))
inputs = keras.Input(shape=(8,))
outputs = layers.Dense(4, activation="softmax")(layers.Dense(16, activation="relu")(inputs))
model = keras.Model(inputs, outputs)
model.compile(
    optimizer=keras.optimizers.RMSprop(learning_rate=1e-3),
    loss=keras.losses.SparseCategoricalCrossentropy(),
    metrics=[CategoricalTruePositives(), LargestLogit(), "sparse_categorical_accuracy"],
)
history = model.fit(x, y, batch_size=20, epochs=3, shuffle=False, verbose=2)
results = model.evaluate(x, y, batch_size=50, verbose=0, return_dict=True)
print(results)
