"""What a layer assigns and then reads: no gradient flows through a variable, as in Keras."""

import keras
import numpy as np
import pytest

import kerasdist


class Running(keras.layers.Layer):
    """Subtracts a running value of its inputs, which it has just updated."""

    def __init__(self, kind):
        super().__init__()
        self.kind = kind

    def build(self, shape):
        def weight(name, *shape):
            return self.add_weight(shape=shape, initializer="zeros", trainable=False, name=name)

        self.value, self.count = weight("value", shape[-1]), weight("count")

    def call(self, x, training=False):
        if training:
            new = keras.ops.max(x, 0) if self.kind == "max" else keras.ops.mean(x, 0)
            if self.kind == "twice":
                self.value.assign(0.5 * self.value)
            self.value.assign(
                keras.ops.maximum(self.value, new)
                if self.kind == "max"
                else 0.9 * self.value + 0.1 * new
            )
            self.count.assign_add(1.0)
        return x - self.value


@pytest.mark.parametrize("kind", ["mean", "max", "twice"])
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("enabled", [False, True])
def test_weights_and_state_are_those_of_keras(kind, devices, enabled):
    x = np.random.default_rng(0).normal(size=(60, 6)).astype("float32")
    fit = {"batch_size": 20, "epochs": 2, "shuffle": False, "verbose": 0}
    found = []
    for is_ours in (False, True):
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Dense(8, "relu"), Running(kind), keras.layers.Dense(2)]
        model = keras.Sequential([keras.Input((6,)), *layers])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        if not is_ours:
            model.fit(x, x[:, :2], **fit)
        elif enabled:
            with kerasdist.enable(devices=devices):
                model.fit(x, x[:, :2], **fit)
        else:
            kerasdist.fit(model, x, x[:, :2], devices=devices, **fit)
        found.append(model.get_weights())
    for expected, ours in zip(*found, strict=True):
        np.testing.assert_allclose(ours, expected, rtol=1e-5, atol=1e-6)
