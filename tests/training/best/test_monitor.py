"""The monitored value is known before the first step, where it can be."""

import keras
import numpy as np
import pytest

import kerasdist

X, Y = np.ones((16, 2), "float32"), np.zeros((16, 1), "float32")


class Started(keras.callbacks.Callback):
    """Notes that the training began."""

    has_begun = False

    def on_train_begin(self, logs=None):
        self.has_begun = True


class Own(keras.Model):
    """Logs what only its step knows."""

    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(1)

    def call(self, x):
        return self.out(x)

    def train_step(self, data):
        return {**super().train_step(data), "special": 0.5}


def fit(path, monitor, *, build=None, **options):
    model = keras.Sequential([keras.layers.Dense(1)]) if build is None else build()
    model.compile("sgd", "mse", metrics=["mae", keras.metrics.BinaryAccuracy(name="accuracy")])
    started = Started()
    try:
        kerasdist.fit(
            model, X, Y, monitor=monitor, run_dir=path, callbacks=started, progress=False, **options
        )
    finally:
        fit.has_begun = started.has_begun


@pytest.mark.parametrize(
    ("monitor", "options", "message"),
    [
        ("val_acuracy", {"validation_data": (X, Y)}, r"Did you mean 'val_accuracy'\?"),
        ("mea", {}, r"Expected one of loss, mae, accuracy\. Did you mean 'mae'\?"),
        ("val_accuracy", {}, "Expected one of loss, mae, accuracy.*need validation data"),
    ],
)
def test_a_name_that_nothing_logs_is_refused_before_training(tmp_path, monitor, options, message):
    with pytest.raises(kerasdist.KerasdistError, match=message):
        fit(tmp_path / "run", monitor, **options)
    assert not fit.has_begun
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("monitor", ["loss", "mae", "val_loss", "val_accuracy"])
def test_what_is_logged_is_accepted(tmp_path, monitor):
    fit(tmp_path / "run", monitor, validation_data=(X, Y))
    assert (tmp_path / "run/best.keras").exists()


def test_a_step_of_the_models_own_decides_by_its_first_epoch(tmp_path):
    fit(tmp_path / "run", "special", build=Own)
    assert fit.has_begun


def test_the_loss_of_one_output_is_accepted(tmp_path):
    inputs = keras.Input((2,))
    outputs = {name: keras.layers.Dense(1, name=name)(inputs) for name in ("age", "size")}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", {"age": "mse", "size": "mae"}, metrics={"size": ["mape"]})
    for monitor in ("age_loss", "val_size_loss", "val_size_mape"):
        data = (X, {"age": Y, "size": Y})
        kerasdist.fit(
            model,
            data,
            validation_data=data,
            batch_size=8,
            monitor=monitor,
            run_dir=tmp_path / monitor,
            progress=False,
        )
        assert (tmp_path / monitor / "best.keras").exists()


class Extra(keras.layers.Layer):
    """Has a metric of its own, made when it is called."""

    def __init__(self):
        super().__init__()
        self.seen = keras.metrics.Mean(name="seen")

    def call(self, x):
        self.seen.update_state(keras.ops.mean(x))
        return x


def test_a_metric_of_a_layer_is_accepted(tmp_path):
    fit(tmp_path / "run", "seen", build=lambda: keras.Sequential([Extra(), keras.layers.Dense(1)]))
    assert fit.has_begun
