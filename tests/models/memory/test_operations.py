"""What functional models compute between their layers. A run is not resumed with anything else."""

import doctest

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.models.memory import operations
from kerasdist.models.memory.operations import differ, of_operations

layers, ops = keras.layers, keras.ops
X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")


def made(between, nested=False):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,))
    model = keras.Model(inputs, layers.Dense(4)(between(layers.Dense(4)(inputs))))
    if nested:
        model = keras.Sequential([keras.Input((4,)), layers.Dense(4), model])
    model.compile("sgd", "mse")
    return model


CHANGES = {
    "a number": (lambda x: x * 0.2, lambda x: x * 0.3),
    "none": (lambda x: x, lambda x: x * 0.3),
    "a function": (ops.tanh, ops.sigmoid),
    "an axis": (
        lambda x: x - ops.mean(x, axis=1, keepdims=True),
        lambda x: x - ops.mean(x, axis=0, keepdims=True),
    ),
    "a connection": (lambda x: ops.tanh(x) + x, lambda x: x + ops.tanh(x)),
    "an array": (lambda x: x * np.array([1.0, 2, 3, 4]), lambda x: x * np.array([1.0, 2, 3, 5])),
}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_other_operations_have_another_fingerprint(change, nested):
    before, after = CHANGES[change]
    assert differ(of_operations(made(before, nested)), of_operations(made(after, nested)))
    # Keras numbers the names of a whole process.
    assert not differ(of_operations(made(before, nested)), of_operations(made(before, nested)))


def test_what_is_not_functional_or_of_another_keras_is_not_compared():
    assert of_operations(keras.Sequential([keras.Input((4,)), layers.Dense(2)])) is None
    assert not differ(None, "3.15.1 abc")
    assert not differ("3.14.1 abc", "3.15.1 def")
    assert differ("3.15.1 abc", "3.15.1 def")


@pytest.mark.parametrize("change", CHANGES)
def test_a_run_is_not_resumed_with_other_operations(change, tmp_path):
    """The weights have the same shapes: it continued without a word."""
    before, after = CHANGES[change]
    options = {"batch_size": 8, "progress": False, "run_dir": tmp_path / "run"}
    kerasdist.fit(made(before), X, X, epochs=1, **options)
    with pytest.raises(
        kerasdist.KerasdistError, match="computes something else between its layers"
    ):
        kerasdist.fit(made(after), X, X, epochs=2, **options)
    kerasdist.fit(made(before), X, X, epochs=2, **options)


def test_examples_of_docstrings_run():
    assert doctest.testmod(operations).failed == 0
