"""Quantile regression: one head for each quantile, with a loss made by a function."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(65)
rng = np.random.default_rng(65)
quantiles = (0.1, 0.5, 0.9)
x = rng.uniform(0, 4, (77, 2)).astype("float32")
y = (x[:, :1] ** 2 + rng.normal(0, 1, (77, 1)) * x[:, 1:]).astype("float32")


def quantile_loss(quantile):
    def loss(y_true, y_pred):
        error = y_true - y_pred
        return ops.mean(ops.maximum(quantile * error, (quantile - 1) * error), axis=-1)

    return loss


def coverage(y_true, y_pred):
    return ops.cast(y_true <= y_pred, y_pred.dtype)


inputs = keras.Input((2,))
hidden = layers.Dense(16, activation="silu")(inputs)
outputs = [layers.Dense(1, name=f"q{int(100 * q)}")(hidden) for q in quantiles]
model = keras.Model(inputs, outputs)
model.compile(
    optimizer=keras.optimizers.Adam(0.02),
    loss=[quantile_loss(q) for q in quantiles],
    loss_weights=[1.0, 2.0, 1.0],
    metrics=[[coverage], [coverage], [coverage]],
)
history = model.fit(x, [y, y, y], batch_size=24, epochs=3, shuffle=False, verbose=2)
low, middle, high = model.predict(x[:10], verbose=0)
print(np.concatenate([low, middle, high], axis=1).round(2), history.history)
