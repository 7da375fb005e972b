"""The best and the worst validation examples, for the report of a run."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.cli import main
from kerasdist.evaluation import examples
from kerasdist.evaluation import regression as regression_numbers
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
    assert (found["examples"], found["is_whole"], found["is_random"]) == (30, False, False)
    assert np.sum(found["confusion"]) == 30


def test_a_part_of_data_in_memory_is_a_random_part(run):
    """The data is sorted by class, as many data sets are."""
    recipe = kerasdist.load_recipe(run / "config.json")
    data = recipe.build_data("validation")
    order = np.argsort(data["label"], kind="stable")
    data = {name: array[order] for name, array in data.items()}
    ticks = iter(range(0, 1000, 3))
    found = examples.evaluate(
        kerasdist.load(run), data, recipe, "CPU:0", batch_size=10, clock=lambda: next(ticks)
    )
    assert (found["examples"], found["is_whole"], found["is_random"]) == (30, False, True)
    assert np.count_nonzero(np.sum(found["confusion"], axis=1)) == 3
    names = np.array(["low", "middle", "high"])
    for each in (*found["worst"], *found["best"]):
        assert names[data["label"][each["position"]]] == each["label"]


def test_a_regression_has_errors_instead_of_a_confusion(regression):
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    found = examples.evaluate(model, regression, None, "CPU:0")
    x, y = regression
    predicted = model.predict(x, verbose=0)
    errors = np.abs(predicted - y)
    assert (found["examples"], found["is_whole"]) == (37, True)
    assert "confusion" not in found
    for i, target in enumerate(found["targets"]):
        assert target["name"] == f"target {i + 1}"
        assert target["mae"] == pytest.approx(errors[:, i].mean(), rel=1e-5)
        assert target["rmse"] == pytest.approx(np.sqrt((errors[:, i] ** 2).mean()), rel=1e-5)
        spread = ((y[:, i] - y[:, i].mean()) ** 2).sum()
        assert target["r2"] == pytest.approx(1 - (errors[:, i] ** 2).sum() / spread, rel=1e-4)
        points = np.stack([y[:, i], predicted[:, i]], 1)
        assert np.allclose(sorted(target["points"]), sorted(points.tolist()), atol=1e-5)
        assert sum(target["residuals"]["counts"]) == 37
    order = np.argsort(errors.mean(axis=1))
    assert [each["position"] for each in found["best"]] == order[:8].tolist()
    assert [each["position"] for each in found["worst"]] == order[::-1][:8].tolist()


@pytest.mark.parametrize(
    ("loss", "width", "rank"),
    [("binary_crossentropy", 3, 2), ("mse", regression_numbers.MOST_TARGETS + 1, 2), ("mse", 2, 3)],
    ids=["several labels", "too many values", "sequences"],
)
def test_what_is_neither_classes_nor_a_few_values_has_no_answers(loss, width, rank):
    shape = (5,) * (rank - 1)
    model = keras.Sequential([keras.Input(shape), keras.layers.Dense(width, "sigmoid")])
    model.compile("sgd", loss)
    x = np.ones((6, *shape), "float32")
    y = np.ones((6, *shape[:-1], width), "float32")
    assert examples.evaluate(model, (x, y), None, "CPU:0") is None


def test_a_binary_model_has_probabilities():
    random = np.random.default_rng(0)
    x = random.normal(size=(200, 1)).astype("float32")
    y = (random.random(200) < 1 / (1 + np.exp(-2 * x[:, 0]))).astype("float32")
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
    model.set_weights([np.array([[2.0]])])
    found = examples.evaluate(model, (x, y), None, "CPU:0")
    assert found["precision_recall"]["class"] == "1"
    assert found["precision_recall"]["share"] == pytest.approx(y.mean())
    assert found["precision_recall"]["average_precision"] > 0.8
    assert sum(row[3] for row in found["calibration"]["bins"]) == 200
    assert found["calibration"]["error"] < 0.12  # The model knows the true probabilities.
    assert {each["label"] for each in found["best"]} == {"0", "1"}
