"""A loaded model trains on as the run would have: its optimizer has its state."""

import keras
import numpy as np
import pytest

import kerasdist
from tests.model_files.small_models import assert_same

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
FIT = {"batch_size": 8, "shuffle": False, "verbose": 0, "seed": 1}


def compiled(optimizer=None):
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)]
    )
    model.compile(optimizer or keras.optimizers.Adam(0.05), "mse")
    return model


def fit(model, epochs, **options):
    return kerasdist.fit(model, X, X[:, :1], epochs=epochs, **FIT, **options)


@pytest.mark.parametrize("which", ["best", "final", "last"])
def test_a_loaded_model_goes_on_with_its_optimizer(which, tmp_path):
    slower = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    trained = compiled()
    fit(trained, 3, run_dir=tmp_path / "run", callbacks=[slower])
    loaded = kerasdist.load(tmp_path / "run", which)
    assert int(loaded.optimizer.iterations) == 12
    assert float(loaded.optimizer.learning_rate) == pytest.approx(0.05 / 8)
    assert_same(
        [v.numpy() for v in trained.optimizer.variables],
        [v.numpy() for v in loaded.optimizer.variables],
    )
    for model in (trained, loaded):
        model.fit(X, X[:, :1], batch_size=8, shuffle=False, verbose=0)
    assert_same(trained.get_weights(), loaded.get_weights())


def test_mixed_precision_and_its_loss_scale(tmp_path):
    history = fit(compiled, 2, run_dir=tmp_path / "run", precision="mixed_float16")
    loaded = kerasdist.load(tmp_path / "run", "final")
    assert_same(
        [v.numpy() for v in history.model.optimizer.variables],
        [v.numpy() for v in loaded.optimizer.variables],
    )


def test_a_prediction_needs_no_optimizer(tmp_path):
    fit(compiled(), 1, run_dir=tmp_path / "run")
    found = kerasdist.predict(str(tmp_path / "run"), X)
    assert np.shape(found) == (32, 1)
