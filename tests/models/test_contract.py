"""How a model is compiled."""

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist import KerasdistError
from kerasdist.models.contract import ensure_compiled


class Single(kerasdist.Model):
    features = "image"
    targets = "label"


class Line(kerasdist.Model):
    features = "x"
    targets = "y"
    sample_weight = "w"

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, kernel_initializer="zeros")

    def call(self, x):
        return self.dense(x)

    def defaults(self):
        return {"optimizer": keras.optimizers.SGD(0.5), "loss": "mse"}


def test_a_model_that_nobody_compiled_takes_its_defaults():
    model = Line()
    data = {"x": np.ones((4, 1)), "y": np.ones((4, 1)), "w": [1.0, 1.0, 0.0, 0.0]}
    history = kerasdist.fit(model, data, batch_size=4, progress=False)
    assert history.history["loss"] == [0.5]  # Half of the squares of 1 weigh nothing.
    assert float(model.optimizer.learning_rate) == 0.5


def test_compile_comes_before_the_defaults():
    model = Line()
    model.compile("adam", "mae")
    ensure_compiled(model)
    assert isinstance(model.optimizer, keras.optimizers.Adam)


def test_a_model_without_loss_or_optimizer_is_refused():
    with pytest.raises(KerasdistError, match=r"'Single' is not compiled.*from `defaults\(\)`"):
        ensure_compiled(Single())
    model = keras.Sequential()
    model.compile(optimizer=None, loss="mse")
    with pytest.raises(KerasdistError, match="compiled without an optimizer"):
        ensure_compiled(model)
