"""Missing values: NaN in the inputs is masked by a layer before anything can see it."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(78)
rng = np.random.default_rng(78)
series = rng.normal(size=(64, 8, 2)).astype("float32")
target = series.sum(axis=(1, 2))[:, None]
series[rng.random((64, 8)) < 0.2] = np.nan


class ReplaceMissing(layers.Layer):
    """Learned values instead of missing ones, and a flag that says so."""

    def build(self, input_shape):
        self.replacement = self.add_weight(shape=(input_shape[-1],), initializer="zeros")

    def call(self, inputs):
        missing = ops.isnan(inputs)
        filled = ops.where(missing, self.replacement, ops.nan_to_num(inputs))
        return ops.concatenate([filled, ops.cast(missing, filled.dtype)], axis=-1)


inputs = keras.Input((8, 2))
x = ReplaceMissing()(inputs)
x = layers.SimpleRNN(10, return_sequences=True)(x)
x = layers.Attention(use_scale=True)([x, x])
x = layers.GlobalAveragePooling1D()(x)
model = keras.Model(inputs, layers.Dense(1)(x))
model.compile(optimizer="adam", loss="log_cosh", metrics=["mse"])
history = model.fit(series, target, batch_size=18, epochs=2, shuffle=False, verbose=2)
answers = model.predict(series, verbose=0)
print(np.isfinite(answers).all(), history.history)
