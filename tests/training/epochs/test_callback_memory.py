"""What callbacks remember: a checkpoint never fails because of it, and each gets back its own."""

import json
from pathlib import Path

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.runs.checkpoints import Store
from kerasdist.runs.checkpoints.manifests import describe
from kerasdist.training.epochs.callback_memory import CallbackMemory

X = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def build():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse", metrics=["mae"])
    return model


def fit(run, callbacks=(), epochs=3, **options):
    options = {"batch_size": 16, "seed": 0, "devices": 1, "progress": False} | options
    return kerasdist.fit(
        build, (X, Y), epochs=epochs, run_dir=run, callbacks=list(callbacks), **options
    )


def restored(before, after, change=lambda arrays: arrays):
    """What `after` gets of the memory of `before`: whose memory found no callback."""
    first, second = (CallbackMemory(each, each) for each in (before, after))
    for each in before:
        each.on_train_begin()
    for number, each in enumerate(before, start=1):
        for name in ("wait", "best", "count"):
            if hasattr(each, name):
                setattr(each, name, number)
    return second.restore(change(first.arrays()))


def by_place(before):
    """Names the keys as checkpoints did when a callback was its place in the list."""
    places = list(CallbackMemory(before, before)._all)

    def change(arrays):
        renamed = {}
        for key, array in arrays.items():
            _, title, number, *rest = key.split("/")
            renamed["/".join(["callbacks", str(places.index(f"{title}/{number}")), *rest])] = array
        return renamed

    return change


class Rate(keras.callbacks.Callback):
    """A common habit: the variable itself, not its number."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.optimizer.learning_rate = 0.01 / 2**epoch
        logs["rate"] = self.model.optimizer.learning_rate
        logs["tensor"] = keras.ops.convert_to_tensor([1.0, epoch])


class Odd(keras.callbacks.Callback):
    """Logs and keeps what no checkpoint can hold."""

    def on_train_begin(self, logs=None):
        self.words, self.mixed, self.huge, self.mine = [], [], [], [np.ones(2)]

    def on_epoch_end(self, epoch, logs=None):
        self.words.append(np.array(["cat", "dog"]))
        self.mixed = [np.ones(3), np.ones(3), None]
        self.huge = [10**30]
        self.number = 10**30
        self.mine.append(np.full(2, epoch))
        logs["path"] = Path("a/b")
        logs["by_class"] = {1: 0.5}
        logs["like_ours"] = {"array": [1, 2]}
        logs["names"] = np.array(["a", "b"])
        logs["nan"] = np.float64("nan")
        logs["broken"] = Unreadable()


class Unreadable:
    def __str__(self):
        raise ZeroDivisionError

    def numpy(self):
        raise ZeroDivisionError


def test_a_variable_in_the_logs_is_its_number_of_that_epoch(tmp_path):
    whole = fit(tmp_path / "whole", [Rate()], save_every="epoch").history
    assert whole["rate"] == pytest.approx([0.01, 0.005, 0.0025])
    assert [type(value) for value in whole["rate"]] == [float] * 3
    np.testing.assert_array_equal(whole["tensor"], [[1, 0], [1, 1], [1, 2]])
    fit(tmp_path / "parts", [Rate()], epochs=2, save_every="epoch")
    parts = fit(tmp_path / "parts", [Rate()], save_every="epoch").history
    np.testing.assert_array_equal(parts["tensor"], whole["tensor"])
    assert {k: v for k, v in parts.items() if k != "tensor"} == {
        k: v for k, v in whole.items() if k != "tensor"
    }
    log = (tmp_path / "parts/metrics.jsonl").read_text()
    lines = [json.loads(text) for text in log.splitlines()]
    assert [line["rate"] for line in lines if line["kind"] == "epoch"] == whole["rate"]


def test_what_no_checkpoint_can_hold_is_told_once_and_stops_nothing(tmp_path, capsys):
    run = tmp_path / "run"
    fit(run, [Odd()], epochs=2, save_every="epoch")
    told = capsys.readouterr().err
    assert told.count("checkpoints keep it as text") == 1
    assert (run / "final.keras").exists()
    found = Store(run / "checkpoints").newest()
    assert {key.split("/")[3] for key in found.arrays if key.startswith("callbacks/")} == {"mine"}
    odd = Odd()
    history = fit(run, [odd], epochs=3, save_every="epoch").history
    assert history["path"] == ["a/b", "a/b", Path("a/b")]
    assert history["by_class"][:2] == ["{1: 0.5}"] * 2
    assert history["names"][0] == "['a' 'b']"
    assert history["broken"][0] == "Unreadable"
    assert np.isnan(history["nan"]).all()
    np.testing.assert_array_equal(odd.mine, [[1, 1], [0, 0], [1, 1], [2, 2]])


def test_what_callbacks_of_keras_remember_can_be_saved():
    stop = keras.callbacks.EarlyStopping("loss")
    memory = CallbackMemory([stop], [stop])
    stop.on_train_begin()
    stop.best, stop.best_weights = keras.Variable(0.5), [np.array(["a"], object)]
    arrays = memory.arrays()
    assert arrays["callbacks/EarlyStopping(loss)/0/best"] == 0.5
    assert not any("best_weights" in key for key in arrays)
    assert describe(arrays)


def early(monitor="loss", **options):
    return keras.callbacks.EarlyStopping(monitor, **options)


def saving(path="x.keras"):
    return keras.callbacks.ModelCheckpoint(path, monitor="loss", save_best_only=True)


def plateau():
    return keras.callbacks.ReduceLROnPlateau("loss")


class Counter(keras.callbacks.Callback):
    def __init__(self, count=0):
        super().__init__()
        self.count = count


class Other(Counter):
    pass


def test_memory_follows_its_callback_to_another_place():
    stop, save = early(), saving()
    assert restored([early()], [save, stop]) == []
    assert (stop.wait, stop.best, save.best) == (1, 1, None)
    stops = [early("val_loss"), early("loss")]
    before = [early("loss"), saving(), early("val_loss")]
    assert restored(before, stops) == ["ModelCheckpoint(loss)"]
    assert [stop.best for stop in stops] == [3, 1]
    counters = [Other(), Counter(), Counter()]
    assert restored([Counter(), Other(), Counter(), plateau()], counters) == [
        "ReduceLROnPlateau(loss)"
    ]
    assert [each.count for each in counters] == [2, 1, 3]
    assert restored([Counter(), early("a/b")], []) == ["Counter", "EarlyStopping(a%2Fb)"]


def test_memory_of_older_checkpoints_is_used_where_there_is_no_doubt():
    def old(before, after):
        return restored(before, after, by_place(before))

    stop, save = early(), saving()
    assert old([early()], [save, stop]) == []
    assert (stop.best, save.best) == (1, None)
    stop, rate, counter = early(), plateau(), Counter()
    assert old([early(), plateau(), Counter()], [stop, rate, counter]) == []
    assert (stop.best, rate.best, counter.count) == (1, 2, 3)
    # Which of two it was is known only by its place, if there are as many.
    stops = [early(), early()]
    assert old([early(), early()], stops) == []
    assert [stop.best for stop in stops] == [1, 2]
    assert old([early(), early()], [early()]) == ["number 0", "number 1"]
    assert old([Counter(), Other()], [Other(), Counter()]) == ["number 0", "number 1"]
    assert old([Counter()], [early(), Counter()]) == ["number 0"]
    assert old([saving()], [early()]) == ["number 0"]


def test_a_resumed_run_says_whose_memory_it_does_not_use(tmp_path, capsys):
    run = tmp_path / "run"
    fit(run, [early(patience=5), Counter()], epochs=2)
    save, stop = saving(str(tmp_path / "x.keras")), early(patience=5)
    bests = []
    watch = keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: bests.append((save.best, stop.best))
    )
    history = fit(run, [save, stop, watch], epochs=3, progress="lines").history
    assert bests == [(None, history["loss"][1])]
    assert "memory of" not in capsys.readouterr().out
    fit(run, [], epochs=4, progress="lines")
    told = (
        "the checkpoint has the memory of 2 callbacks that this training does not have: "
        "EarlyStopping(loss), ModelCheckpoint(loss)"
    )
    assert told in " ".join(capsys.readouterr().out.split())


class Seeing(keras.callbacks.EarlyStopping):
    """Counts epochs, besides what `EarlyStopping` does."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self.seen, self.losses = 0, []

    def on_epoch_end(self, epoch, logs=None):
        self.seen += 1
        self.losses.append(logs["loss"])
        super().on_epoch_end(epoch, logs)


def test_a_subclass_of_a_callback_of_keras_keeps_its_own_numbers_too(tmp_path):
    whole, parts = (Seeing("loss", patience=5, min_delta=0.25) for _ in range(2))
    fit(tmp_path / "whole", [whole], epochs=5)
    fit(tmp_path / "parts", [Seeing("loss", patience=5, min_delta=0.25)], epochs=3)
    fit(tmp_path / "parts", [parts], epochs=5)
    assert (parts.seen, parts.losses) == (5, whole.losses)
    # Keras turns its sign in each process.
    assert (parts.min_delta, parts.best, parts.wait) == (-0.25, whole.best, whole.wait)
    keys = Store(tmp_path / "parts/checkpoints").newest().arrays
    names = {key.split("/")[3] for key in keys if key.startswith("callbacks/")}
    assert names == {"wait", "best", "best_epoch", "stopped_epoch", "seen", "losses"}


def test_the_own_numbers_of_subclasses_leave_out_the_settings_of_keras(tmp_path):
    class Log(keras.callbacks.CSVLogger):
        rows = 0

        def on_epoch_end(self, epoch, logs=None):
            self.rows += 1
            super().on_epoch_end(epoch, logs)

    fit(tmp_path / "run", [Log(tmp_path / "log.csv")], epochs=2)
    log = Log(tmp_path / "log.csv")
    fit(tmp_path / "run", [log], epochs=3)
    assert log.rows == 3
    keys = Store(tmp_path / "run/checkpoints").newest().arrays
    assert [key for key in keys if key.startswith("callbacks/")] == ["callbacks/Log/0/rows"]
    assert len((tmp_path / "log.csv").read_text().splitlines()) == 4


class Failing(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 1:
            raise ZeroDivisionError


def test_a_csv_log_has_its_header_if_the_run_was_killed_in_its_first_epoch(tmp_path):
    log = tmp_path / "log.csv"
    killed = keras.callbacks.CSVLogger(log)
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", [killed, Failing()], save_every=1)
    killed.csv_file.close()
    assert log.read_text() == ""
    fit(tmp_path / "run", [keras.callbacks.CSVLogger(log)], save_every=1)
    fit(tmp_path / "whole", [keras.callbacks.CSVLogger(tmp_path / "whole.csv")])
    assert log.read_text() == (tmp_path / "whole.csv").read_text()
    assert log.read_text().startswith("epoch,")
    # Half a row of a killed process, and rows of epochs that are trained again.
    log.write_text(log.read_text() + "3,0.5,0.5,NA,NA\nx\n")
    fit(tmp_path / "run", [keras.callbacks.CSVLogger(log)], epochs=4)
    assert [row.split(",")[0] for row in log.read_text().splitlines()] == ["epoch", *"0123"]
