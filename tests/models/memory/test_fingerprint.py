"""A fingerprint changes with all that a compiled function depends on, and with nothing else."""

import copy

import keras
import numpy as np
import pytest
from keras.constraints import NonNeg
from keras.regularizers import L2

from kerasdist.models.memory.fingerprint import Same, fingerprint


class Widths(keras.Model):
    """Settings of its own: numbers in a list, and a function."""

    def __init__(self):
        super().__init__()
        self.sizes = [3, 4]
        self.scale = np.tanh
        self.hidden = keras.layers.Dense(2)
        self.build((None, 2))

    def build(self, shape):
        self.hidden.build(shape)
        self.built = True

    def call(self, x):
        return self.hidden(x)


def small():
    model = keras.Sequential(
        [
            keras.Input((2,)),
            keras.layers.Dense(4, activation="relu", kernel_regularizer="l2"),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(1),
        ]
    )
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    loss = keras.losses.Huber(delta=0.7)
    model.compile(keras.optimizers.SGD(schedule, momentum=0.5), loss, metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    return model


def test_values_of_variables_do_not_count():
    model = small()
    before = fingerprint(model)
    model.set_weights([w + 1 for w in model.get_weights()])
    model.optimizer.iterations.assign(5)
    model.stop_training = True
    model.history = object()
    assert fingerprint(model) == before
    assert hash(fingerprint(model)) == hash(before)


CHANGES = {
    "a weight's regularizer": lambda m: setattr(m.weights[2], "regularizer", L2(0.1)),
    "a weight's constraint": lambda m: setattr(m.weights[0], "constraint", NonNeg()),
    "a rate": lambda model: setattr(model.layers[1], "rate", 0.1),
    "an activation": lambda model: setattr(model.layers[0], "activation", keras.activations.tanh),
    "a regularizer's number": lambda model: setattr(model.layers[0].kernel_regularizer, "l2", 0.5),
    "trainability": lambda model: setattr(model.layers[0], "trainable", False),
    "trainability of a variable": lambda model: setattr(model.layers[0].bias, "trainable", False),
    "a number of the optimizer": lambda model: setattr(model.optimizer, "momentum", 0.9),
    "a number of the schedule": lambda model: setattr(
        model.optimizer._learning_rate, "decay_rate", 0.5
    ),
    "a new compile": lambda model: model.compile(model.optimizer, "mse"),
    "the precision": lambda model: setattr(
        model.layers[2], "dtype_policy", keras.DTypePolicy("mixed_bfloat16")
    ),
    "a global setting": lambda model: keras.config.set_floatx("float64"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_settings_count(change):
    model = small()
    before = fingerprint(model)
    change(model)
    assert fingerprint(model) != before


@pytest.mark.parametrize(
    "change",
    [lambda m: m.sizes.append(5), lambda m: setattr(m, "scale", np.sinh)],
    ids=["a list", "a function"],
)
def test_attributes_of_custom_models_count(change):
    model = Widths()
    before = fingerprint(model)
    change(model)
    assert fingerprint(model) != before


def test_another_model_of_the_same_settings_differs():
    assert fingerprint(small()) != fingerprint(small())


def test_same_is_identity():
    one, other = [1], [1]
    assert Same(one) == Same(one)
    assert Same(one) != Same(other)
    assert Same(one) != copy.copy(Same(other))
