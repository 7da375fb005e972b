"""A model without `call`, as a usual GAN: only its parts are built and have weights."""

import warnings

import keras
import numpy as np
import pytest
from keras import layers, ops

import kerasdist
from kerasdist import KerasdistError
from tests.model_files.small_models import assert_same


@keras.saving.register_keras_serializable("model_of_parts")
class Pair(keras.Model):
    """Two networks, each with an optimizer that only `compile` adds."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
        self.second = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
        self.mean = keras.metrics.Mean(name="distance")

    def compile(self, first_optimizer, second_optimizer):
        super().compile()
        self.first_optimizer = first_optimizer
        self.second_optimizer = second_optimizer

    def get_config(self):
        return {}

    @property
    def metrics(self):
        return [self.mean]

    def train_step(self, x):
        import tensorflow as tf

        with tf.GradientTape(persistent=True) as tape:
            distance = ops.mean(ops.square(self.second(self.first(x)) - 1))
        for part, optimizer in (
            (self.first, self.first_optimizer),
            (self.second, self.second_optimizer),
        ):
            weights = part.trainable_weights
            optimizer.apply(tape.gradient(distance, weights), weights)
        self.mean.update_state(distance)
        return {"distance": self.mean.result()}


def pair():
    model = Pair()
    model.compile(keras.optimizers.Adam(), keras.optimizers.SGD(0.1, momentum=0.9))
    return model


DATA = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
FIT = {"batch_size": 8, "epochs": 1, "progress": False}


@pytest.fixture
def run(tmp_path):
    model = pair()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*not yet been built")
        kerasdist.fit(model, DATA, run_dir=tmp_path / "run", **FIT)
    return model, tmp_path / "run"


def test_weights_of_a_run_are_loaded(run):
    trained, folder = run
    model = pair()
    assert kerasdist.load_weights(model, folder).complete
    assert not model.built
    assert_same(trained.get_weights(), model.get_weights())


def test_a_run_starts_from_another(run):
    trained, folder = run
    frozen = pair()
    frozen.compile(keras.optimizers.SGD(0.0), keras.optimizers.SGD(0.0))
    kerasdist.fit(frozen, DATA, init_from=folder, **FIT)
    assert_same(trained.get_weights(), frozen.get_weights())


def test_the_model_of_a_run_is_rebuilt(run):
    trained, folder = run
    with pytest.warns(UserWarning, match="custom"):
        model = kerasdist.load(folder, which="final")
    assert_same(trained.get_weights(), model.get_weights())
    np.testing.assert_array_equal(trained.first(DATA), model.first(DATA))


def test_the_error_names_the_final_model(run):
    with pytest.raises(KerasdistError, match="Load `which='final'`"):
        kerasdist.load(run[1])


def test_parts_that_are_not_built_are_refused(run):
    class Lazy(keras.Model):
        def __init__(self):
            super().__init__()
            self.first = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
            self.second = keras.Sequential([layers.Dense(1)])

    with pytest.raises(KerasdistError, match="no weights yet"):
        kerasdist.load_weights(Lazy(), run[1])


def test_no_command_is_printed_that_fails(tmp_path, capsys):
    kerasdist.fit(pair(), DATA, run_dir=tmp_path / "run", batch_size=8, epochs=1)
    lines = capsys.readouterr()
    assert "continue" in lines.out + lines.err
    assert "evaluate" not in lines.out + lines.err
