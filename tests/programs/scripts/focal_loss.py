"""A focal loss class with settings and `get_config`, and Keras's own for comparison."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(66)
rng = np.random.default_rng(66)
x = rng.normal(size=(91, 9)).astype("float32")
y = (rng.random((91, 4)) < 0.15).astype("float32")


@keras.saving.register_keras_serializable(package="corpus")
class FocalLoss(keras.losses.Loss):
    def __init__(self, alpha=0.25, gamma=2.0, reduction="sum_over_batch_size", name="focal"):
        super().__init__(reduction=reduction, name=name)
        self.alpha = alpha
        self.gamma = gamma

    def call(self, y_true, y_pred):
        cross_entropy = ops.binary_crossentropy(y_true, y_pred, from_logits=True)
        probs = ops.sigmoid(y_pred)
        alpha = ops.where(ops.equal(y_true, 1.0), self.alpha, 1.0 - self.alpha)
        alpha = ops.cast(alpha, y_pred.dtype)
        pt = ops.where(ops.equal(y_true, 1.0), probs, 1.0 - probs)
        return ops.sum(alpha * ops.power(1.0 - pt, self.gamma) * cross_entropy, axis=-1)

    def get_config(self):
        return super().get_config() | {"alpha": self.alpha, "gamma": self.gamma}


inputs = keras.Input((9,))
outputs = layers.Dense(4)(layers.Dense(14, activation="relu")(inputs))
model = keras.Model(inputs, outputs)
own = FocalLoss.from_config(FocalLoss(gamma=1.5).get_config())
model.compile(optimizer="adam", loss=own, metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)])
own_history = model.fit(x, y, batch_size=25, epochs=2, shuffle=False, verbose=2)
model.compile(optimizer="adam", loss=keras.losses.BinaryFocalCrossentropy(from_logits=True))
keras_history = model.fit(x, y, batch_size=25, epochs=2, shuffle=False, verbose=2)
print(own_history.history, keras_history.history)
