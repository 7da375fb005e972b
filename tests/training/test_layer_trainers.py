"""A layer that inherits Keras's trainer is a model, too: Keras's own tests make such models."""

import keras
import numpy as np
import pytest
from keras.src.trainers.trainer import Trainer

import kerasdist
from kerasdist.models import pure

# The trainer of the backend, which every `keras.Model` inherits.
BackendTrainer = next(kind for kind in keras.Model.__mro__ if "train_step" in vars(kind))


class DenseTrainer(BackendTrainer, keras.layers.Dense):
    def __init__(self, units):
        keras.layers.Dense.__init__(self, units, kernel_initializer="ones")
        BackendTrainer.__init__(self)


def made():
    model = DenseTrainer(2)
    model.compile(keras.optimizers.SGD(0.1), "mse", metrics=["mae"])
    return model


def test_what_counts_as_a_model():
    assert pure.is_model(made())
    assert pure.is_model(keras.Sequential())
    assert issubclass(BackendTrainer, Trainer)
    for other in (keras.layers.Dense(2), DenseTrainer, lambda: None, "runs/0001"):
        assert not pure.is_model(other)


def test_it_trains_as_with_keras(regression):
    x, y = regression
    by_keras, ours = made(), made()
    expected = by_keras.fit(x, y, batch_size=10, shuffle=False, verbose=0).history
    found = kerasdist.fit(ours, x, y, batch_size=10, shuffle=False, verbose=0, devices=2).history
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    np.testing.assert_allclose(ours.kernel, by_keras.kernel, rtol=1e-5)
    expected = by_keras.evaluate(x, y, verbose=0, return_dict=True)
    assert kerasdist.evaluate(ours, x, y, verbose=0, devices=2) == pytest.approx(expected, rel=1e-5)
    expected = by_keras.predict(x, verbose=0)
    found = kerasdist.predict(ours, x, verbose=0, devices=2)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)
