"""What a stopped training says about why."""

import doctest
import json

import keras
import numpy as np
import pytest

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


class Custom(keras.callbacks.Callback):
    """Nobody knows what it does."""


class StopsAt(keras.callbacks.Callback):
    def __init__(self, epoch):
        super().__init__()
        self.epoch = epoch

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            self.model.stop_training = True


@pytest.mark.parametrize("other", [Custom, keras.callbacks.TerminateOnNaN])
def test_more_patience_continues_a_stopped_run_whatever_other_callbacks_there_are(tmp_path, other):
    first, _ = run(tmp_path / "run", 12, [stopping(1), other()])
    again, _ = run(tmp_path / "run", 12, [other(), stopping(1)])
    assert again.epoch == first.epoch
    patient, _ = run(tmp_path / "run", 12, [stopping(20), other()])
    assert len(patient.epoch) == 12 > len(first.epoch)


def test_what_a_custom_callback_stopped_stays_stopped_also_after_an_early_stop(tmp_path):
    first, _ = run(tmp_path / "run", 12, [stopping(1)])
    stop_at = len(first.epoch) + 1
    second, _ = run(tmp_path / "run", 12, [stopping(20), StopsAt(stop_at)])
    assert len(second.epoch) == stop_at + 1
    told = json.loads((tmp_path / "run/result.json").read_text())["stopped"]
    assert told == "a callback set `model.stop_training`"
    third, _ = run(tmp_path / "run", 12, [stopping(30), StopsAt(99)])
    assert third.epoch == second.epoch
    fourth, _ = run(tmp_path / "run", 12, [stopping(30)])
    assert len(fourth.epoch) == 12
