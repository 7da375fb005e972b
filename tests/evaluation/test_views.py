"""Test-time augmentation: a model's outputs, averaged over views of each example."""

import doctest

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.evaluation import views
from kerasdist.evaluation.views import averaging


def test_examples_of_docstrings_run():
    assert doctest.testmod(views).failed == 0


def test_a_model_has_its_class_again_afterwards():
    model = keras.Sequential([keras.Input((1,)), keras.layers.ReLU()])
    with averaging(model, lambda x: [x, -x]):
        assert type(model) is not keras.Sequential
        assert type(model).__name__ == "Sequential"
    assert type(model) is keras.Sequential


@pytest.mark.parametrize("wrong", [[], None, "view"])
def test_views_that_are_not_a_list_are_refused(wrong):
    model = keras.Sequential([keras.Input((1,)), keras.layers.ReLU()])
    with (
        averaging(model, lambda x: wrong),
        pytest.raises(kerasdist.KerasdistError, match="Expected a list of at least one view"),
    ):
        model(np.ones((2, 1)))
    assert type(model) is keras.Sequential
