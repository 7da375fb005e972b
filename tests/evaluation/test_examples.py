"""The best and the worst validation examples, for the report of a run."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.cli import main
from kerasdist.evaluation import examples
from tests import classifier_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A trained run of a classifier, with averaged weights."""
    folder = tmp_path_factory.mktemp("report")
    recipe = classifier_recipe.write(folder / "small")
    path = folder / "run"
    options = ["--ema", "0.9", "--quiet", "--log-every", "2", "--run-dir", str(path)]
    assert main.main(["fit", str(recipe), *options]) == 0
    return path


def test_time_for_examples_is_limited(run):
    recipe = kerasdist.load_recipe(run / "config.json")
    data = recipe.build_data("validation")
    data = tf.data.Dataset.from_tensor_slices(data).batch(10)
    model = kerasdist.load(run)
    ticks = iter(range(0, 1000, 3))  # Each look at the clock is three seconds later.
    found = examples.evaluate(model, data, recipe, "CPU:0", clock=lambda: next(ticks))
    assert (found["examples"], found["is_whole"]) == (30, False)
    assert np.sum(found["confusion"]) == 30


def test_values_have_no_confusion(regression):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    assert examples.evaluate(model, regression, None, "CPU:0") is None
