"""`on_nan="skip"`: what an epoch reports of which every step was left out."""

import json
import math

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.runs import metrics_log
from kerasdist.training.epochs import not_finite
from kerasdist.training.epochs.plan import Position

X = np.ones((16, 3), "float32")
Y = X[:, :1]


class Spoil(keras.callbacks.Callback):
    """Makes the weights NaN before the given epochs, and 1 before the others."""

    def __init__(self, epochs):
        super().__init__()
        self.epochs = epochs

    def on_epoch_begin(self, epoch, logs=None):
        value = np.nan if epoch in self.epochs else 1.0
        self.model.set_weights([np.full((3, 1), value)])
        self.is_spoilt = epoch in self.epochs

    def on_test_begin(self, logs=None):
        if self.is_spoilt:
            self.model.set_weights([np.full((3, 1), 1 / 3)])  # Perfect.


def fit(path, spoilt, **options):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, use_bias=False)])
    model.compile("sgd", "mse", metrics=["mae"])
    options = {"batch_size": 8, "on_nan": "skip", "progress": False, "run_dir": path} | options
    return kerasdist.fit(model, X, Y, callbacks=[Spoil(spoilt)], **options)


def strictly(text):
    """The JSON of a reader that knows no NaN, as JavaScript is one."""
    return json.loads(text, parse_constant=pytest.fail)


@pytest.mark.parametrize("devices", [1, 2])
def test_an_epoch_whose_steps_were_all_skipped_reports_nan(tmp_path, devices):
    history = fit(tmp_path / "run", {0, 1}, epochs=2, devices=devices)
    assert list(history.history) == ["loss", "mae"]
    assert np.isnan(list(history.history.values())).all()
    result = strictly((tmp_path / "run/result.json").read_text())
    assert (result["steps"], result["loss"], result["mae"]) == (0, None, None)
    lines = (tmp_path / "run/metrics.jsonl").read_text().splitlines()
    assert [strictly(line)["loss"] for line in lines] == [None, None]
    assert not (tmp_path / "run/best.keras").exists()
    assert metrics_log.best_epoch(tmp_path / "run") is None
    resumed = fit(tmp_path / "run", {0, 1}, epochs=3, devices=devices)  # The third one trains.
    assert np.isnan(resumed.history["loss"]).tolist() == [True, True, False]


def test_an_epoch_whose_steps_were_all_skipped_is_not_the_best(tmp_path):
    """Its validation is the best: that of a callback's weights."""
    history = fit(tmp_path, {0, 2}, epochs=3, validation_data=(X, Y))
    assert np.argmin(history.history["val_loss"]) != 1
    name, best = metrics_log.best_epoch(tmp_path)
    assert (name, best.epoch) == ("val_loss", 2)
    model = keras.saving.load_model(tmp_path / "best.keras")
    assert np.max(model.get_weights()[0]) > 0.34


def test_a_best_epoch_has_a_loss():
    lines = [
        {"epoch": 1, "loss": None, "val_loss": 0.1},
        {"epoch": 2, "loss": 0.5, "val_loss": 0.4},
        {"epoch": 3, "val_loss": 0.3},  # A step of the model's own that returns no loss.
    ]
    assert metrics_log.best(lines, "val_loss").epoch == 3
    assert metrics_log.best(lines[:2], "val_loss").epoch == 2
    assert not not_finite.has_loss({"loss": math.nan, "val_loss": 0.1})
    assert not_finite.has_loss({"val_loss": 0.1})


def test_the_logs_of_an_epoch():
    logs = {"loss": 0.5, "f1": np.ones(2, "float32")}
    some, none = Position(in_epoch=3, left_out=1), Position(step=3, left_out=1)
    assert not_finite.of_epoch(logs, some, None) == logs
    found = not_finite.of_epoch(logs, none, None)
    assert math.isnan(found["loss"])
    assert np.isnan(found["f1"]).tolist() == [True, True]
    assert not_finite.of_epoch({"loss": 0.0}, Position(), None) == {"loss": 0.0}  # Empty data.
    assert not_finite.of_epoch(logs, some, math.inf)["loss"] == math.inf


def test_giving_up_says_how_many_steps_were_left_out(tmp_path):
    many = np.full((8 * (not_finite.MOST_SKIPPED + 1), 3), np.nan, "float32")
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    options = {"batch_size": 8, "allow_nan": True, "progress": False}
    with pytest.raises(kerasdist.DivergedError, match=r"^10 steps in a row were left out\. Step 1"):
        kerasdist.fit(model, many, many[:, :1], on_nan="skip", **options)
    with pytest.raises(kerasdist.DivergedError, match=r"^Step 1 is not finite"):
        kerasdist.fit(model, many, many[:, :1], **options)
