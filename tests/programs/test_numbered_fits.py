"""Numbered fits: what a second start of a script loads, and what it refuses."""

import json
import random

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist import KerasdistError
from kerasdist.programs import numbered_fits

slow = pytest.mark.slow

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(40, 3)).astype("float32")
Y = (X[:, :1] > 0).astype("float32")


@pytest.fixture
def start(tmp_path, monkeypatch):
    """Calls a function as a new process would: kerasdist knows nothing of earlier starts."""

    def begin(program, **options):
        for fits in numbered_fits._known.values():
            if fits._lock is not None:
                fits._lock.release()
        numbered_fits._known.clear()
        keras.utils.clear_session()
        keras.utils.set_random_seed(5)
        given = {"devices": 2, "run_dir": tmp_path / "fits", "deterministic": True, "save_every": 2}
        with kerasdist.enable(**{**given, **options}):
            return program()

    return begin


class Killed(BaseException):
    """Stands for the end of a process."""


class Probe(keras.callbacks.Callback):
    """Draws numbers, keeps losses, and ends the process in some step of some fit."""

    def __init__(self, kill_at=None):
        super().__init__()
        self.kill_at, self.losses, self.epochs = kill_at, [], 0

    def on_train_batch_end(self, batch, logs=None):
        if self.kill_at is not None and int(self.model.optimizer.iterations.numpy()) > self.kill_at:
            raise Killed

    def on_epoch_end(self, epoch, logs=None):
        random.gauss(0, 1)
        np.random.normal()
        keras.random.normal((2,))
        self.losses.append(logs["loss"])
        self.epochs += 1


def model_of(*layers):
    model = keras.Sequential([keras.Input((3,)), *layers, keras.layers.Dense(1)])
    model.compile("adam", "mse", metrics=["mae"])
    return model


def two_fits(kill_first=None, kill_second=None, epochs=3, learning_rate=0.01, x=X, units=4):
    """A script. Returns everything that it can see."""
    first, probe = model_of(keras.layers.Dense(units, activation="tanh")), Probe(kill_first)
    begun = first.fit(x, Y, batch_size=8, epochs=2, verbose=0, callbacks=probe)
    second = model_of(keras.layers.Dropout(0.5))
    second.compile(keras.optimizers.SGD(learning_rate, momentum=0.9), "mse")
    stop = keras.callbacks.EarlyStopping(monitor="loss", patience=1, min_delta=9.0)
    seen = Probe(kill_second)
    ended = second.fit(
        x, Y, batch_size=8, epochs=epochs, verbose=0, callbacks=[stop, seen], validation_split=0.2
    )
    return {
        "histories": [(h.history, h.epoch, h.params) for h in (begun, ended)],
        "list of keys": [list(h.history) for h in (begun, ended)],
        "weights": [w.tolist() for m in (first, second) for w in m.get_weights()],
        "optimizers": [v.numpy().tolist() for m in (first, second) for v in m.optimizer.variables],
        "callbacks": (stop.wait, stop.best, stop.stopped_epoch, probe.losses, seen.losses),
        "counts": (probe.epochs, seen.epochs, first.stop_training, second.stop_training),
        "metrics": {k: float(v) for k, v in first.get_metrics_result().items()},
        "evaluated": second.evaluate(X, Y, verbose=0),
        "drawn": (random.random(), random.gauss(0, 1), np.random.normal()),
        "drawn by Keras": keras.random.normal((2,)).numpy().tolist(),
        "is history": second.history is ended,
    }


def test_a_finished_script_is_loaded_and_looks_the_same(start, capsys):
    undisturbed = start(two_fits)
    again = start(two_fits)
    assert again == undisturbed
    captured = capsys.readouterr()
    assert captured.err.count("is finished, and loaded from") == 2
    assert captured.out == ""


@pytest.mark.parametrize(
    ("kill_first", "kill_second"),
    [(7, 1), pytest.param(3, None, marks=slow), pytest.param(None, 5, marks=slow)],
)
def test_a_script_that_is_killed_ends_as_if_it_was_not(
    start, kill_first, kill_second, tmp_path, capsys
):
    undisturbed = start(two_fits, run_dir=tmp_path / "other")
    for kills in ((kill_first, None), (None, kill_second)):
        if kills != (None, None):
            with pytest.raises(Killed):
                start(lambda kills=kills: two_fits(*kills))
    assert start(two_fits) == undisturbed
    assert "continues in" in capsys.readouterr().err


@slow
def test_on_one_device_it_is_the_same(start, tmp_path):
    undisturbed = start(two_fits, run_dir=tmp_path / "other", devices=1)
    with pytest.raises(Killed):
        start(lambda: two_fits(kill_second=4), devices=2)
    assert start(two_fits, devices=1) == undisturbed


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"learning_rate": 0.02}, "Fit 2 .*learning_rate"),
        ({"epochs": 2}, "Fit 2 .*epochs was 3 and is 2"),
        ({"x": X + 1}, "Fit 1 .*: the data differ. Expected"),
        ({"units": 5}, "Fit 1 .*: the layer Dense differs: units was 4 and is 5"),
    ],
)
def test_another_script_is_refused(start, changed, message, capsys):
    start(two_fits)
    capsys.readouterr()
    with pytest.raises(KerasdistError, match=message) as caught:
        start(lambda: two_fits(**changed))
    assert "--no-resume" not in str(caught.value)
    assert "or delete that folder" in str(caught.value)
    told = capsys.readouterr().err
    assert "starts from other weights" not in told
    assert ("fit 1 is finished, and loaded" in told) == ("Fit 2" in message)
    assert "fit 2 is finished" not in told


@pytest.mark.parametrize("kill_at", [10, 12])
def test_an_epoch_that_is_resumed_has_its_title(start, kill_at, capsys):
    """Killed within the second epoch of 5 steps, or in its first step of the third one."""

    def program(kill_at=None):
        model_of().fit(X, Y, batch_size=8, epochs=3, verbose=2, callbacks=Probe(kill_at))

    with pytest.raises(Killed):
        start(lambda: program(kill_at))
    capsys.readouterr()
    start(program)
    lines = [line.split(" - ")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["Epoch 2/3", "5/5", "Epoch 3/3", "5/5"][-len(lines) :]
    assert len(lines) in (2, 4)


def test_more_epochs_continue_only_the_last_fit(start):
    def one_fit(epochs):
        return model_of().fit(X, Y, epochs=epochs, verbose=0).epoch

    start(lambda: one_fit(2))
    assert start(lambda: one_fit(3)) == [0, 1, 2]
    start(lambda: (one_fit(3), one_fit(1)))
    with pytest.raises(KerasdistError, match=r"Fit 1 .*epochs was 3 and is 4"):
        start(lambda: (one_fit(4), one_fit(1)))


def test_other_initial_weights_are_told(start, capsys):
    def program(seed):
        keras.utils.set_random_seed(seed)
        model_of().fit(X, Y, verbose=0)

    start(lambda: program(1))
    capsys.readouterr()
    start(lambda: program(2))
    assert "starts from other weights" in capsys.readouterr().err


def test_a_fit_that_is_refused_does_not_count(start, tmp_path):
    def program():
        model = model_of()
        with pytest.raises(KerasdistError):
            model.fit(X, Y, batch_size=-1, verbose=0)
        model.fit(X, Y, verbose=0)

    start(program)
    assert sorted(p.name for p in (tmp_path / "fits").glob("fit-*")) == ["fit-01"]
    start(lambda: model_of().fit(X, Y, verbose=0))


def test_numbers_go_on_when_kerasdist_is_enabled_again(tmp_path):
    for _ in range(2):
        with kerasdist.enable(devices=1, run_dir=tmp_path / "fits"):
            model_of().fit(X, Y, verbose=0)
    assert sorted(p.name for p in (tmp_path / "fits").glob("fit-*")) == ["fit-01", "fit-02"]


def test_a_fit_in_a_callback_has_no_number(start, tmp_path):
    class Inner(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            model_of().fit(X, Y, verbose=0)

    start(lambda: model_of().fit(X, Y, epochs=2, verbose=0, callbacks=[Inner()]))
    assert sorted(p.name for p in (tmp_path / "fits").glob("fit-*")) == ["fit-01"]


def test_a_folder_of_something_else_is_left_alone(start, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "notes.txt").write_text("mine")
    with pytest.raises(KerasdistError, match="not empty"):
        start(lambda: model_of().fit(X, Y, verbose=0), run_dir=other)
    assert [p.name for p in other.iterdir()] == ["notes.txt"]
    run = tmp_path / "run"
    kerasdist.fit(model_of(), (X, Y), run_dir=run, batch_size=8, verbose=0)
    with pytest.raises(KerasdistError, match="holds one run"):
        start(lambda: model_of().fit(X, Y, verbose=0), run_dir=run)


def test_what_an_early_kill_leaves_is_no_obstacle(start, tmp_path):
    folder = tmp_path / "fits" / "fit-01"
    folder.mkdir(parents=True)
    (folder / ".config.json.tmp").write_text('{"keras')
    (tmp_path / "fits" / ".script.json.tmp").write_text("")
    (tmp_path / "fits" / "script.json").write_text('{"kerasdist": "0", "fits": []}')
    start(lambda: model_of().fit(X, Y, verbose=0))
    assert json.loads((folder / "result.json").read_text())["status"] == "finished"
