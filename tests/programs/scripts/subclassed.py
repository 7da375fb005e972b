"""A subclassed model of subclassed layers that create their weights in `build`."""

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(3)
rng = np.random.default_rng(3)


class Linear(layers.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.units = units

    def build(self, input_shape):
        self.w = self.add_weight(
            shape=(input_shape[-1], self.units), initializer="glorot_uniform", trainable=True
        )
        self.b = self.add_weight(shape=(self.units,), initializer="zeros", trainable=True)

    def call(self, inputs):
        return ops.matmul(inputs, self.w) + self.b


class Block(layers.Layer):
    def __init__(self, units, **kwargs):
        super().__init__(**kwargs)
        self.linear = Linear(units)
        self.norm = layers.LayerNormalization()

    def call(self, inputs):
        return ops.relu(self.norm(self.linear(inputs)))


class Network(keras.Model):
    def __init__(self, num_outputs):
        super().__init__()
        self.blocks = [Block(16), Block(8)]
        self.head = Linear(num_outputs)

    def call(self, inputs, training=False):
        x = inputs
        for block in self.blocks:
            x = block(x)
        return self.head(x)


x = rng.normal(size=(90, 6)).astype("float32")
y = np.stack([x.sum(axis=1), x.prod(axis=1)], axis=1)

model = Network(2)
model.compile(
    optimizer=keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
    loss="mse",
    metrics=["mae", keras.metrics.RootMeanSquaredError()],
)
history = model.fit(x, y, batch_size=20, epochs=3, shuffle=False)
print(history.history["root_mean_squared_error"])
loss, mae, rmse = model.evaluate(x, y, verbose=0)
print(f"loss {loss:.3f}, mae {mae:.3f}, rmse {rmse:.3f}")
