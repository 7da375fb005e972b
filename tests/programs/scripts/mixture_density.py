"""A mixture density network: one output holds weights, means and scales of Gaussians."""

import math

import keras
import numpy as np
from keras import layers, ops

keras.utils.set_random_seed(64)
rng = np.random.default_rng(64)
num_components = 3
x = rng.uniform(-1, 1, (81, 1))
y = x + 0.3 * np.sin(8 * x) + rng.normal(0, 0.05, (81, 1))


def elu_plus_one_plus_epsilon(x):
    return keras.activations.elu(x) + 1 + keras.backend.epsilon()


class MixtureDensityOutput(layers.Layer):
    def __init__(self, num_components, **kwargs):
        super().__init__(**kwargs)
        self.mus = layers.Dense(num_components, name="mus")
        self.sigmas = layers.Dense(num_components, activation=elu_plus_one_plus_epsilon)
        self.pis = layers.Dense(num_components, name="pis")

    def build(self, input_shape):
        for layer in (self.mus, self.sigmas, self.pis):
            layer.build(input_shape)

    def call(self, x):
        return ops.concatenate([self.mus(x), self.sigmas(x), self.pis(x)], axis=-1)


def negative_log_likelihood(y_true, y_pred):
    mus, sigmas, logits = ops.split(y_pred, 3, axis=-1)
    log_weights = ops.log_softmax(logits, axis=-1)
    distances = ((y_true - mus) / sigmas) ** 2
    log_densities = -0.5 * distances - ops.log(sigmas) - 0.5 * math.log(2 * math.pi)
    return -ops.logsumexp(log_weights + log_densities, axis=-1)


mdn_network = keras.Sequential(
    [layers.Dense(16, activation="relu"), MixtureDensityOutput(num_components)]
)
mdn_network.compile(loss=negative_log_likelihood, optimizer="adam")
history = mdn_network.fit(
    x,
    y,
    epochs=3,
    batch_size=20,
    shuffle=False,
    validation_split=0.15,
    callbacks=[keras.callbacks.ReduceLROnPlateau(monitor="loss", patience=1)],
    verbose=0,
)
parameters = mdn_network.predict(np.linspace(-1, 1, 7)[:, None], verbose=0)
print(parameters.shape, history.history)
