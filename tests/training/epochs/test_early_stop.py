"""What a stopped training says about why."""

import doctest

import keras
import numpy as np

import kerasdist
from kerasdist.training.epochs import early_stop


def test_the_example_runs():
    assert doctest.testmod(early_stop).failed == 0


def run(folder, epochs, callbacks):
    x = np.linspace(-1, 1, 32, dtype="float32").reshape(16, 2)
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.7, momentum=0.9), "mse")
    options = {"epochs": epochs, "seed": 0, "callbacks": callbacks, "progress": False}
    return kerasdist.fit(model, x, x[:, :1], run_dir=folder, **options), model.get_weights()


def stopping(patience):
    return keras.callbacks.EarlyStopping("loss", patience=patience, restore_best_weights=True)


def test_a_stopped_run_continues_without_the_callback_or_with_more_patience(tmp_path):
    first, restored = run(tmp_path / "run", 12, [stopping(1)])
    stopped = len(first.epoch)
    assert stopped < 12
    again, weights = run(tmp_path / "run", 12, [stopping(1)])
    assert again.history == first.history
    for old, new in zip(restored, weights, strict=True):
        np.testing.assert_array_equal(old, new)
    undisturbed, expected = run(tmp_path / "other", 12, [])
    further, weights = run(tmp_path / "run", 12, [])
    assert further.history == undisturbed.history
    for old, new in zip(expected, weights, strict=True):
        np.testing.assert_array_equal(old, new)


def test_more_patience_continues_a_stopped_run(tmp_path):
    first, _ = run(tmp_path / "run", 12, [stopping(1)])
    patient, weights = run(tmp_path / "run", 12, [stopping(20)])
    undisturbed, expected = run(tmp_path / "other", 12, [stopping(20)])
    assert len(patient.epoch) == 12 > len(first.epoch)
    assert patient.history == undisturbed.history
    for old, new in zip(expected, weights, strict=True):
        np.testing.assert_array_equal(old, new)


def test_more_epochs_for_a_run_that_stopped_early_say_why_nothing_is_trained(tmp_path, capsys):
    x = np.ones((16, 2), "float32")

    def fit(epochs):
        model = keras.Sequential([keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
        stop = keras.callbacks.EarlyStopping("loss", patience=2)
        run = tmp_path / "run"
        kerasdist.fit(
            model, x, x[:, :1], epochs=epochs, seed=0, callbacks=stop, run_dir=run, progress="lines"
        )
        return capsys.readouterr().out

    first, more = fit(50), fit(80)
    for printed in (first, more):
        assert "stopped early: loss has not improved for 2 epochs after epoch 1" in printed
        assert "init_from=" in printed
        assert "epochs=" not in printed.splitlines()[-1]
