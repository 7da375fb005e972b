"""Optimizers without one learning rate train as in Keras, and logs show a rate."""

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.models.optimizers.shown_rate import learning_rate
from tests.device_counts import at_most

X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")

has_multi_optimizer = pytest.mark.skipif(
    not hasattr(keras.optimizers, "MultiOptimizer"), reason="Keras has it from 3.15 on"
)


def optimizer():
    of_biases = {".*bias": keras.optimizers.Adam(0.01)}
    return keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1), of_biases)
    )


@has_multi_optimizer
def test_a_multi_optimizer_trains_as_in_keras():
    models = [keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)]) for _ in range(2)]
    expected, found = models
    found.set_weights(expected.get_weights())
    for model in models:
        model.compile(optimizer(), "mse")
    expected.fit(X, X[:, :1], batch_size=8, epochs=3, shuffle=False, verbose=0)
    kerasdist.fit(found, X, X[:, :1], batch_size=8, epochs=3, shuffle=False, devices=at_most(2))
    for one, other in zip(found.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


@has_multi_optimizer
def test_the_rate_is_that_of_the_first_optimizer():
    assert float(learning_rate(keras.optimizers.Adam(0.25))) == 0.25
    assert float(learning_rate(optimizer())) == np.float32(0.01)
