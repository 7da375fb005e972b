"""Batches that are not arrays of numbers, or unlike the batches before them."""

import keras
import numpy as np
import pytest

from tests.bad_input import X, Y, refusal, regressor


@pytest.mark.parametrize(
    ("values", "found"),
    [
        (np.array(["2020-01-01"] * 10, "datetime64[D]"), "datetime64[D]"),
        (np.array([None] * 10), "NoneType"),
        (np.array([{}] * 10), "dict"),
    ],
    ids=["dates", "None", "objects"],
)
def test_values_that_are_no_numbers(values, found, not_compiled):
    message = refusal(regressor(), (values, Y))
    assert f"of the type {found} in `data` (0)" in message
    assert "Expected numbers" in message


def test_rows_of_different_lengths(not_compiled):
    message = refusal(regressor(), ([[1.0], [2.0, 3.0]] * 5, Y))
    assert "The rows in `data` (0) have different lengths" in message
    assert "pad_sequences" in message


def test_arrays_of_different_lengths(not_compiled):
    message = refusal(regressor(), (X, Y[:9]))
    assert "(10, 4)" in message
    assert "(9, 1)" in message
    assert "same first dimension" in message
    assert "10, 4" in refusal(regressor(), (X, np.float32(3)))


@pytest.mark.parametrize(
    ("second", "words"),
    [
        ((np.ones((5, 7), "float32"), Y[5:]), ["batch 1 ", "x: float32(None, 7)", "value 4"]),
        ((np.ones((5, 4, 1), "float32"), Y[5:]), ["batch 1 ", "(5, 4, 1)", "(None, 4)"]),
        ((X[5:].astype("int32"), Y[5:]), ["batch 1 ", "int32", "float32"]),
        ((X[5:],), ["batch 1 ", "1 positions", "2 positions"]),
        ((X[5:], np.float32(1)), ["batch 1 ", "()"]),
        ({"x": X[5:]}, ["batch 1 ", "the fields ['x']", "2 positions"]),
    ],
    ids=["size", "dimensions", "type", "positions", "scalar", "dict"],
)
def test_a_batch_unlike_the_ones_before_is_named(second, words):
    def generate():
        yield X[:5], Y[:5]
        yield second

    model = regressor(keras.optimizers.SGD(0.0))
    message = refusal(model, generate, batch_size=None)
    assert all(word in message for word in words), message
    assert int(model.optimizer.iterations) == 1
