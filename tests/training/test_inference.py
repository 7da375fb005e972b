"""Metrics over an evaluation are exact, and predictions keep their order."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.training import engines as engines_module

RANDOM = np.random.default_rng(2)
X = RANDOM.normal(size=(41, 4)).astype("float32")
Y = (RANDOM.uniform(size=(41, 1)) < 0.5).astype("float32")
WEIGHTS = RANDOM.uniform(0.1, 2.0, size=41).astype("float32")


class LargestError(keras.metrics.Metric):
    """Not a sum: the largest error seen."""

    def __init__(self, name="largest_error"):
        super().__init__(name=name)
        self.largest = self.add_variable(shape=(), initializer="zeros", name="largest")

    def update_state(self, y_true, y_pred, sample_weight=None):
        error = keras.ops.max(keras.ops.abs(y_true - y_pred))
        self.largest.assign(keras.ops.maximum(self.largest, error))

    def result(self):
        return self.largest


def batch_mean(y_true, y_pred):
    """A metric function that returns one number for its whole batch."""
    return keras.ops.mean(y_pred) ** 2


def classifier():
    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile(
        "sgd",
        "binary_crossentropy",
        metrics=["accuracy", keras.metrics.AUC(), LargestError(), batch_mean],
        weighted_metrics=[keras.metrics.Precision(), "mae"],
    )
    return model


@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_metrics_are_keras_own_on_any_number_of_devices(replicas):
    """41 examples in batches of 8: the last batch has one, so replicas stay empty."""
    model = classifier()
    expected = model.evaluate(
        X, Y, sample_weight=WEIGHTS, batch_size=8, verbose=0, return_dict=True
    )
    found = kerasdist.evaluate(model, (X, Y, WEIGHTS), batch_size=8, devices=replicas)
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5, abs=1e-7), name


@pytest.mark.parametrize("shards", [1, 4])
@pytest.mark.parametrize("replicas", [1, 2])
def test_metrics_while_training_are_those_of_whole_batches(replicas, shards):
    if shards < replicas:
        pytest.skip("shards are a multiple of the replicas")
    model = classifier()
    model.optimizer.learning_rate = 0.0
    expected = model.evaluate(X, Y, batch_size=8, verbose=0, return_dict=True)
    history = kerasdist.fit(
        model,
        (X, Y),
        batch_size=8,
        devices=replicas,
        shards=shards,
        shuffle=False,
        progress=False,
    )
    for name, value in expected.items():
        assert history.history[name][0] == pytest.approx(value, rel=1e-5, abs=1e-7), name


ALL_METRICS = {
    "binary": [
        keras.metrics.AUC,
        keras.metrics.BinaryAccuracy,
        keras.metrics.BinaryCrossentropy,
        keras.metrics.BinaryIoU,
        keras.metrics.F1Score,
        keras.metrics.FalseNegatives,
        keras.metrics.FalsePositives,
        keras.metrics.Hinge,
        keras.metrics.KLDivergence,
        keras.metrics.LogCoshError,
        keras.metrics.MeanAbsoluteError,
        keras.metrics.MeanAbsolutePercentageError,
        keras.metrics.MeanSquaredLogarithmicError,
        keras.metrics.Poisson,
        keras.metrics.Precision,
        keras.metrics.R2Score,
        keras.metrics.Recall,
        keras.metrics.RootMeanSquaredError,
        keras.metrics.SquaredHinge,
        keras.metrics.TrueNegatives,
        keras.metrics.TruePositives,
        keras.metrics.CosineSimilarity,
    ]
}


def test_every_metric_of_keras_adds_up_over_replicas():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1, activation="sigmoid")])
    model.compile("sgd", "mse", metrics=[kind() for kind in ALL_METRICS["binary"]])
    one = kerasdist.evaluate(model, (X, Y), batch_size=16, devices=1)
    three = kerasdist.evaluate(model, (X, Y), batch_size=16, devices=3)
    keras_own = model.evaluate(X, Y, batch_size=16, verbose=0, return_dict=True)
    for name, value in keras_own.items():
        np.testing.assert_allclose(one[name], value, rtol=2e-5, err_msg=name)
        np.testing.assert_allclose(three[name], value, rtol=2e-5, err_msg=name)


@pytest.mark.parametrize("replicas", [1, 3])
def test_keras_own_metrics_over_the_whole_batch_get_it(replicas):
    """Along the axis of the examples, or by a function that compares all of them."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, activation="sigmoid")])
    along = [keras.metrics.CosineSimilarity(axis=0), keras.metrics.PearsonCorrelation(axis=0)]
    model.compile("sgd", "mse", metrics=[*along, keras.losses.dice, keras.losses.Tversky()])
    targets = RANDOM.uniform(size=(40, 3)).astype("float32")
    expected = model.evaluate(X[:40], targets, batch_size=8, verbose=0, return_dict=True)
    found = kerasdist.evaluate(
        model, (X[:40], targets), batch_size=8, devices=replicas, shards=replicas * 2
    )
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize("replicas", [1, 3])
def test_metrics_of_outputs_with_one_axis_are_keras_own(replicas):
    """The last axis, along which Keras's metrics reduce, has the examples."""
    inputs = keras.Input((4,))
    outputs = keras.ops.sum(keras.layers.Dense(3)(inputs), axis=-1)
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse", metrics=["mae", "cosine_similarity", "kl_divergence"])
    expected = model.evaluate(X, Y[:, 0], batch_size=8, verbose=0, return_dict=True)
    found = kerasdist.evaluate(
        model, (X, Y[:, 0]), batch_size=8, devices=replicas, shards=replicas * 2
    )
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5, abs=1e-6), name


def test_a_tracker_updated_in_the_loss_counts_once_a_batch():
    class Tracking(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer="ones")
            self.tracker = keras.metrics.Mean(name="mean_output")

        def call(self, x):
            return self.dense(x)

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            self.tracker.update_state(keras.ops.mean(y_pred))
            return super().compute_loss(x, y, y_pred, sample_weight, training)

    model = Tracking()
    model.compile(keras.optimizers.SGD(0.0), "mse")
    outputs = X.sum(axis=1)
    expected = np.mean([outputs[i : i + 8].mean() for i in range(0, 41, 8)])
    for replicas in (1, 3):
        found = kerasdist.evaluate(model, (X, Y), batch_size=8, devices=replicas)
        assert found["mean_output"] == pytest.approx(expected, rel=1e-5)


TRACKED = {
    "a sum of means": (keras.metrics.Sum, keras.ops.mean),
    "a count of batches": (keras.metrics.Sum, lambda _: 1.0),
    "a mean of sums": (keras.metrics.Mean, keras.ops.sum),
    "a mean of largest values": (keras.metrics.Mean, keras.ops.max),
    "a sum of sums": (keras.metrics.Sum, keras.ops.sum),
    "a sum of rows": (keras.metrics.Sum, lambda t: t),
}


@pytest.mark.parametrize("place", ["call", "compute_loss"])
@pytest.mark.parametrize("name", TRACKED)
def test_what_the_model_tracks_is_keras_own_on_several_shards(name, place):
    kind, value_of = TRACKED[name]

    class Tracking(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = keras.layers.Dense(1, kernel_initializer="ones")
            self.tracker = kind(name="tracked")

        def call(self, x):
            outputs = self.dense(x)
            if place == "call":
                self.tracker.update_state(value_of(outputs))
            return outputs

        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            if place == "compute_loss":
                self.tracker.update_state(value_of(y_pred))
            return super().compute_loss(x, y, y_pred, sample_weight, training)

    found = []
    for shards in (0, 4):
        model = Tracking()
        model.compile(keras.optimizers.SGD(0.01), "mse")
        given = {"batch_size": 8, "epochs": 2, "shuffle": False, "verbose": 0}
        ours = {"devices": 2, "shards": shards}
        logs = kerasdist.fit(model, X, Y, **given, **ours) if shards else model.fit(X, Y, **given)
        found.append(logs.history["tracked"])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-4)


def test_a_masked_sequence_model_has_kerass_metrics():
    tokens = RANDOM.integers(1, 9, size=(11, 6))
    for row, length in enumerate(RANDOM.integers(1, 7, size=11)):
        tokens[row, length:] = 0
    targets = RANDOM.normal(size=(11, 6, 2)).astype("float32")
    model = keras.Sequential(
        [
            keras.layers.Embedding(9, 4, mask_zero=True),
            keras.layers.LSTM(3, return_sequences=True),
            keras.layers.Dense(2),
        ]
    )
    model.compile("sgd", "mse", metrics=["mae"], weighted_metrics=["mse"])
    expected = model.evaluate(tokens, targets, batch_size=4, verbose=0, return_dict=True)
    found = kerasdist.evaluate(model, (tokens, targets), batch_size=4, devices=3)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize("replicas", [1, 3])
def test_predict_keeps_the_inputs_order(replicas):
    inputs = keras.Input((1,))
    model = keras.Model(inputs, {"twice": inputs * 2, "pair": keras.ops.tile(inputs, [1, 2])})
    numbers = np.arange(23, dtype="float32")[:, None]
    for data in (
        numbers,
        (numbers,),
        tf.data.Dataset.from_tensor_slices((numbers,)).batch(5),
        lambda: ((numbers[i : i + 4],) for i in range(0, 23, 4)),
    ):
        size = {"batch_size": 5} if isinstance(data, (np.ndarray, tuple)) else {}
        found = kerasdist.predict(model, data, devices=replicas, **size)
        np.testing.assert_array_equal(found["twice"], 2 * numbers)
        np.testing.assert_array_equal(found["pair"], np.tile(numbers, [1, 2]))


def test_evaluating_changes_no_weight_and_steps_limit_it():
    model = classifier()
    before = model.get_weights()
    found = kerasdist.evaluate(model, (X, Y), batch_size=8, steps=2, devices=2)
    expected = model.evaluate(X[:16], Y[:16], batch_size=8, verbose=0, return_dict=True)
    assert found["loss"] == pytest.approx(expected["loss"], rel=1e-5)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_predicting_many_batch_sizes_compiles_at_most_twice(monkeypatch):
    made = []

    class Recorded(engines_module.Engine):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

    monkeypatch.setattr(engines_module, "Engine", Recorded)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    found = kerasdist.predict(model, lambda: ((X[:n],) for n in range(1, 31)), devices=2)
    assert len(found) == sum(range(1, 31))
    assert made[0].predict_loop.experimental_get_tracing_count() <= 2


def test_a_model_that_cannot_be_trained_here_can_be_evaluated():
    model = classifier()
    model.optimizer.gradient_accumulation_steps = 2
    assert kerasdist.evaluate(model, (X, Y))["loss"] > 0
