"""A run is not continued with another loss, other metrics or another optimizer without a word."""

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.errors import OtherRunError

X = np.random.default_rng(0).normal(size=(64, 6)).astype("float32")
Y = X[:, :1]


def fit(folder, epochs, optimizer="sgd", loss="mse", metrics=None):
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile(optimizer, loss, metrics=metrics)
    return kerasdist.fit(model, X, Y, epochs=epochs, run_dir=folder, verbose=0, seed=0)


CHANGES = {
    "another loss": ({"loss": "mae"}, "loss was .*mse.* and is .*mae"),
    "a loss's argument": ({"loss": keras.losses.Huber(delta=3)}, r"is 'Huber\(delta=3\)'"),
    "a metric more": ({"metrics": ["mae"]}, r"metrics was .*None.* and is .*mae"),
    "another optimizer": ({"optimizer": "adam"}, "optimizer was 'SGD' and is 'Adam'"),
    "momentum": (
        {"optimizer": keras.optimizers.SGD(0.01, momentum=0.9)},
        "the optimizer's momentum was 0.0 and is 0.9",
    ),
    "weight decay": (
        {"optimizer": keras.optimizers.SGD(0.01, weight_decay=0.5)},
        "the optimizer's weight_decay was None and is 0.5",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_another_compilation_is_refused_by_name(name, tmp_path):
    changed, told = CHANGES[name]
    fit(tmp_path / "run", 2)
    with pytest.raises(OtherRunError, match=told) as error:
        fit(tmp_path / "run", 3, **changed)
    assert "layers of the model" not in str(error.value)
    assert fit(tmp_path / "run", 3).epoch == [0, 1, 2]


def test_another_metric_instead_is_refused(tmp_path):
    fit(tmp_path / "run", 2, metrics=["mape"])
    with pytest.raises(OtherRunError, match=r"metrics was .*mape.* and is .*mae"):
        fit(tmp_path / "run", 3, metrics=["mae"])


def test_another_rate_is_said(tmp_path, capsys):
    fit(tmp_path / "run", 2)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.5), "mse")
    kerasdist.fit(model, X, Y, epochs=3, run_dir=tmp_path / "run", seed=0)
    shown = "".join(capsys.readouterr())
    assert "was 0.01 when the run began, and is 0.5 now" in " ".join(shown.split())
    assert float(model.optimizer.learning_rate) == pytest.approx(0.01)


def test_another_schedule_is_refused_but_not_a_longer_one(tmp_path):
    def of(rate, steps):
        schedule = keras.optimizers.schedules.CosineDecay(rate, steps)
        return keras.optimizers.SGD(schedule)

    fit(tmp_path / "run", 2, optimizer=of(0.1, 10))
    with pytest.raises(OtherRunError, match=r"initial_learning_rate was 0\.1 and is 0\.2"):
        fit(tmp_path / "run", 3, optimizer=of(0.2, 10))
    assert fit(tmp_path / "run", 3, optimizer=of(0.1, 20)).epoch == [0, 1, 2]


def test_another_batch_size_is_not_other_data(tmp_path):
    fit(tmp_path / "run", 1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    with pytest.raises(OtherRunError, match="batch_size was 32 and is 16") as error:
        kerasdist.fit(model, X, Y, batch_size=16, epochs=2, run_dir=tmp_path / "run", verbose=0)
    assert "the data differ" not in str(error.value)


class OwnSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """Without a `get_config`."""

    def __call__(self, step):
        return 0.01


def test_a_schedule_that_cannot_be_described_trains_and_resumes(tmp_path):
    for epochs in (1, 2):
        found = fit(tmp_path / "run", epochs, optimizer=keras.optimizers.SGD(OwnSchedule()))
    assert found.epoch == [0, 1]
