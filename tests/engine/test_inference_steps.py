"""Random numbers in evaluations and predictions: other ones for each batch and call."""

import keras
import numpy as np
import pytest

import kerasdist

X = np.ones((24, 50), "float32")
BATCH = 8
both = pytest.mark.parametrize("devices", [1, 2])


class AlwaysDrop(keras.layers.Layer):
    """Dropout that is not switched off without training."""

    def __init__(self, seed=None):
        super().__init__()
        self.generator = keras.random.SeedGenerator(seed)

    def call(self, x):
        return keras.random.dropout(x, rate=0.5, seed=self.generator)


def dropping(seed=None, cls=keras.Sequential):
    model = cls([keras.Input((50,)), AlwaysDrop(seed)])
    model.compile("sgd", "mse")
    return model


def distinct(rows):
    return len({row.tobytes() for row in np.asarray(rows)})


@both
def test_every_row_of_every_prediction_draws_anew(devices):
    model = dropping()
    answers = [
        kerasdist.predict(model, X, batch_size=BATCH, devices=devices, verbose=0) for _ in range(3)
    ]
    assert distinct(np.concatenate(answers)) == 3 * len(X)
    assert np.mean(answers) == pytest.approx(np.mean(model.predict(X, verbose=0)), abs=0.1)


@both
def test_single_batches_draw_anew(devices):
    model = dropping()
    with kerasdist.enable(devices=devices):
        answers = [model.predict_on_batch(X) for _ in range(3)]
        answers += [model.predict(X, verbose=0) for _ in range(3)]
        losses = [float(model.test_on_batch(X, 0 * X)) for _ in range(4)]
    assert distinct(np.concatenate(answers)) == 6 * len(X)
    assert len(set(losses)) == 4


@pytest.mark.parametrize("draw", ["keras.random", "tf.random"])
def test_an_own_step_draws_anew(draw):
    import tensorflow as tf

    class Sampling(keras.Sequential):
        def predict_step(self, data):
            shape = tf.shape(data)
            if draw == "tf.random":
                return data + tf.random.normal(shape)
            return data + keras.random.normal(shape)

    model = dropping(cls=Sampling)
    with kerasdist.enable(devices=2):
        answers = [model.predict(X, batch_size=BATCH, verbose=0) for _ in range(2)]
    assert distinct(np.concatenate(answers)) == 2 * len(X)


def test_the_numbers_follow_from_the_seed_and_not_from_the_devices():
    def losses(seed, devices):
        model = dropping(seed)
        options = {"batch_size": BATCH, "shards": 2, "devices": devices}
        return [kerasdist.evaluate(model, (X, 0 * X), **options)["loss"] for _ in range(2)]

    expected = losses(7, 1)
    assert losses(7, 2) == pytest.approx(expected, rel=1e-6)
    assert expected[0] != expected[1]
    assert losses(8, 1) != pytest.approx(expected, rel=1e-6)


def test_models_that_draw_nothing_leave_the_generators_alone():
    model = keras.Sequential([keras.Input((50,)), keras.layers.Dropout(0.5)])
    model.compile("sgd", "mse")
    state = model.layers[0].seed_generator.state
    before = np.asarray(state)
    kerasdist.predict(model, X, devices=2)
    kerasdist.evaluate(model, (X, X), devices=2)
    np.testing.assert_array_equal(np.asarray(state), before)


def test_validations_of_a_resumed_run_draw_the_same_numbers(tmp_path):
    def trained(epochs, run_dir):
        keras.utils.set_random_seed(2)
        model = keras.Sequential([keras.Input((50,)), AlwaysDrop(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
        data = (X, X[:, :1])
        return kerasdist.fit(
            model,
            data,
            batch_size=BATCH,
            epochs=epochs,
            validation_data=data,
            seed=4,
            devices=2,
            progress=False,
            run_dir=run_dir,
        ).history["val_loss"]

    expected = trained(4, tmp_path / "whole")
    assert len(set(expected)) == 4  # The weights do not change, but the numbers do.
    trained(2, tmp_path / "parts")
    assert trained(4, tmp_path / "parts") == pytest.approx(expected, rel=1e-6)
