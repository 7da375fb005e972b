"""What a stopped training says about why."""

import doctest

import keras
import numpy as np

import kerasdist
from kerasdist.training.epochs import early_stop


def test_the_example_runs():
    assert doctest.testmod(early_stop).failed == 0


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
