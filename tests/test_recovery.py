"""When checkpoints are taken, what they hold, and how fits go on from them."""

import json

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist import recovery, runs
from kerasdist.recovery import SaveEvery

RANDOM = np.random.default_rng(4)
X = RANDOM.normal(size=(50, 4)).astype("float32")
Y = RANDOM.integers(0, 3, 50)


def build():
    model = keras.Sequential(
        [
            keras.layers.Dense(6),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.05), loss, metrics=["accuracy"])
    return model


class StopAt(keras.callbacks.Callback):
    """Ends the process's training as an error would, at a step."""

    def __init__(self, step):
        super().__init__()
        self.step = step

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == self.step:
            raise ZeroDivisionError


def fit(folder, data=(X, Y), **options):
    defaults = {"batch_size": 8, "epochs": 4, "save_every": 3, "progress": False}
    return kerasdist.fit(build, data, run_dir=folder, **{**defaults, **options})


def interrupted(folder, steps, data=(X, Y), callbacks=(), **options):
    """A fit that was stopped at each of `steps`, then finished."""
    for step in steps:
        with pytest.raises(ZeroDivisionError):
            fit(folder, data, callbacks=[*callbacks, StopAt(step)], **options)
    return fit(folder, data, callbacks=list(callbacks), **options)


def digest(folder):
    return json.loads((folder / "result.json").read_text())["weights_sha256"]


def test_a_run_goes_on_within_an_epoch_with_all_its_history(tmp_path):
    options = {"deterministic": True, "ema": 0.9, "validation_data": (X, Y), "log_every": 1}
    whole = fit(tmp_path / "whole", **options)
    parts = interrupted(tmp_path / "parts", (5, 13, 14, 22), **options)
    assert digest(tmp_path / "whole") == digest(tmp_path / "parts")
    assert whole.history == parts.history
    assert whole.epoch == parts.epoch
    for a, b in zip(whole.ema_weights, parts.ema_weights, strict=True):
        np.testing.assert_array_equal(a, b)
    logs = [
        [
            {k: v for k, v in json.loads(line).items() if k != "examples_per_second"}
            for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        ]
        for name in ("whole", "parts")
    ]
    assert logs[0] == logs[1]


def test_a_run_goes_on_on_other_numbers_of_devices(tmp_path):
    options = {"deterministic": True, "shards": 4}
    fit(tmp_path / "whole", **options)
    for devices, step in ((1, 5), (2, 12), (4, 20)):
        with pytest.raises(ZeroDivisionError):
            fit(tmp_path / "parts", devices=devices, callbacks=[StopAt(step)], **options)
    fit(tmp_path / "parts", devices=1, **options)
    assert digest(tmp_path / "whole") == digest(tmp_path / "parts")


def test_a_finished_run_goes_on_with_more_epochs(tmp_path):
    fit(tmp_path / "whole", deterministic=True, epochs=5)
    fit(tmp_path / "parts", deterministic=True, epochs=2)
    history = fit(tmp_path / "parts", deterministic=True, epochs=5)
    assert history.epoch == [0, 1, 2, 3, 4]
    assert digest(tmp_path / "whole") == digest(tmp_path / "parts")


def test_callbacks_remember_across_a_restart(tmp_path):
    def callbacks(name):
        return [
            keras.callbacks.EarlyStopping("loss", patience=2, min_delta=10.0),
            keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10.0, factor=0.5),
            keras.callbacks.CSVLogger(str(tmp_path / f"{name}.csv")),
        ]

    options = {"deterministic": True, "epochs": 9}
    whole = fit(tmp_path / "whole", callbacks=callbacks("whole"), **options)
    parts = interrupted(tmp_path / "parts", (10, 17), callbacks=callbacks("parts"), **options)
    assert len(whole.epoch) == 3  # the first epoch, and two without an improvement
    assert parts.history == whole.history
    assert digest(tmp_path / "whole") == digest(tmp_path / "parts")
    assert (tmp_path / "whole.csv").read_text() == (tmp_path / "parts.csv").read_text()


def test_a_callback_of_ones_own_keeps_its_count_but_not_its_settings(tmp_path):
    class Counting(keras.callbacks.Callback):
        def __init__(self, limit):
            super().__init__()
            self.count = 0
            self.limit = limit

        def on_epoch_end(self, epoch, logs=None):
            self.count += 1

    first, second = Counting(1), Counting(2)
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", callbacks=[first, StopAt(17)])
    fit(tmp_path / "run", callbacks=[second])
    assert (second.count, second.limit) == (4, 2)


def test_other_model_data_batch_or_seed_is_refused_by_name(tmp_path):
    fit(tmp_path / "run", epochs=1)
    cases = {
        "batch_size was 8 and is 10": {"batch_size": 10},
        "seed was 0 and is 1": {"seed": 1},
        "data_hash was": {"data": (X + 1, Y)},
        "clip_norm was None and is 1.0": {"clip_norm": 1.0},
    }
    for message, change in cases.items():
        with pytest.raises(kerasdist.KerasdistError, match=message):
            fit(tmp_path / "run", **{"epochs": 2, **change})
    with pytest.raises(kerasdist.KerasdistError, match="model was"):
        kerasdist.fit(
            lambda: _other(),
            (X, Y),
            run_dir=tmp_path / "run",
            batch_size=8,
            epochs=2,
            progress=False,
        )
    with pytest.raises(kerasdist.KerasdistError, match="not empty"):
        fit(tmp_path / "run", resume=False)


def _other():
    model = keras.Sequential([keras.layers.Dense(3)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_data_that_comes_in_another_order_is_found_out(tmp_path):
    calls = []

    def batches():
        calls.append(1)
        rows = np.random.default_rng(len(calls)).permutation(50)
        for start in range(0, 50, 10):
            yield X[rows[start : start + 10]], Y[rows[start : start + 10]]

    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "run", batches, batch_size=None, callbacks=[StopAt(4)])
    with pytest.raises(kerasdist.KerasdistError, match="first_batch_hash was"):
        fit(tmp_path / "run", batches, batch_size=None)


def test_a_damaged_checkpoint_is_skipped_and_named(tmp_path, capsys):
    options = {"deterministic": True}
    fit(tmp_path / "whole", **options)
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "parts", callbacks=[StopAt(20)], **options)
    newest = max((tmp_path / "parts" / "checkpoints").glob("step-*"))
    file = newest / "arrays.bin"
    content = bytearray(file.read_bytes())
    content[100] ^= 1
    file.write_bytes(content)
    fit(tmp_path / "parts", progress="auto", **options)
    assert f"skipped the checkpoint {newest.name}" in capsys.readouterr().out
    assert digest(tmp_path / "whole") == digest(tmp_path / "parts")


def test_a_run_without_a_good_checkpoint_is_refused_not_begun_anew(tmp_path):
    fit(tmp_path / "run", epochs=1)
    for file in (tmp_path / "run" / "checkpoints").glob("step-*/arrays.bin"):
        file.write_bytes(b"")
    with pytest.raises(kerasdist.KerasdistError, match="all damaged"):
        fit(tmp_path / "run", epochs=2)


def test_metrics_that_are_nan_are_saved_and_come_back(tmp_path):
    def lost(y_true, y_pred):
        return keras.ops.mean(y_pred) * float("nan")

    def build_with_metric():
        model = build()
        model.compile("adam", model.loss, metrics=[lost])
        return model

    options = {"run_dir": tmp_path / "run", "batch_size": 8, "save_every": 2, "progress": False}
    kerasdist.fit(build_with_metric, (X, Y), epochs=1, **options)
    history = kerasdist.fit(build_with_metric, (X, Y), epochs=2, **options)
    assert np.isnan(history.history["lost"]).all()
    assert len(history.epoch) == 2


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_step_that_is_not_finite_can_be_left_out(tmp_path, replicas, monkeypatch):
    """One batch's loss overflows; its examples are all on the last replica."""
    x = X.copy()
    x[7] = 3e38
    options = {"shuffle": False, "devices": replicas, "epochs": 1}
    with pytest.raises(kerasdist.DivergedError, match=f"replica {replicas - 1}") as raised:
        fit(tmp_path / "stop", (x, Y), **options)
    assert raised.value.step == 1
    note = json.loads((tmp_path / "stop" / "nan.json").read_text())
    assert note["replica"] == replicas - 1
    assert note["examples"] == list(range(8))
    history = fit(tmp_path / "skip", (x, Y), on_nan="skip", **options)
    assert int(history.model.optimizer.iterations) == 6
    assert all(np.isfinite(w).all() for w in history.model.get_weights())
    assert np.isfinite(history.history["loss"]).all()


def test_best_is_of_the_monitored_value_and_survives_a_restart(tmp_path):
    options = {"validation_data": (X, Y), "monitor": "val_accuracy", "deterministic": True}
    whole = fit(tmp_path / "whole", **options)
    interrupted(tmp_path / "parts", (9, 17), **options)
    best = [keras.models.load_model(tmp_path / name / "best.keras") for name in ("whole", "parts")]
    for a, b in zip(best[0].get_weights(), best[1].get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    found = kerasdist.evaluate(best[0], (X, Y), batch_size=8)
    assert found["accuracy"] == pytest.approx(max(whole.history["val_accuracy"]))
    with pytest.raises(kerasdist.KerasdistError, match=r"monitor='acuracy'.*accuracy"):
        fit(tmp_path / "typo", monitor="acuracy")


def test_saving_that_fails_does_not_stop_the_training(tmp_path, monkeypatch, capsys):
    original = recovery.Store.save
    calls = []

    def full(self, step, arrays, meta):
        calls.append(step)
        if len(calls) in (2, 3):
            raise OSError(28, "No space left on device")
        return original(self, step, arrays, meta)

    monkeypatch.setattr(recovery.Store, "save", full)
    history = fit(tmp_path / "run", progress="auto")
    assert len(history.epoch) == 4
    assert capsys.readouterr().out.count("could not save a checkpoint") == 1
    assert runs.status(tmp_path / "run") == "finished"


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, SaveEvery(steps=1000)),
        (500, SaveEvery(steps=500)),
        ("500", SaveEvery(steps=500)),
        ("30s", SaveEvery(seconds=30.0)),
        ("epoch", SaveEvery(epoch=True)),
    ],
)
def test_save_every_reads_steps_seconds_and_epochs(value, expected):
    assert SaveEvery.parse(value) == expected


def test_saves_are_due_by_steps_seconds_or_epochs(tmp_path):
    now = [0.0]

    def make(every):
        return recovery.Recovery(
            tmp_path, every=every, keep=2, identity={}, say=print, clock=lambda: now[0]
        )

    by_steps = make(SaveEvery(steps=10))
    assert [by_steps.is_due(n) for n in (0, 9, 10, 11, 20)] == [False, False, True, False, True]
    assert by_steps.steps_until_due(13) == 7
    by_seconds = make(SaveEvery(seconds=30.0))
    assert not by_seconds.is_due(5)
    now[0] = 31.0
    assert by_seconds.is_due(5)
    by_epochs = make(SaveEvery(epoch=True))
    assert not by_epochs.is_due(5)
    assert by_epochs.is_due(5, epoch_ended=True)
    for each in (by_steps, by_seconds, by_epochs):
        each.close()


def test_init_from_takes_the_weights_of_a_run(tmp_path):
    first = fit(tmp_path / "first", epochs=2)
    model = build()
    history = kerasdist.fit(
        lambda: model,
        (X, Y),
        batch_size=8,
        epochs=1,
        init_from=tmp_path / "first" / "final.keras",
        progress=False,
        callbacks=[
            keras.callbacks.LambdaCallback(
                on_train_begin=lambda logs: seen.append(model.get_weights())
            )
        ],
    )
    assert history.model is model
    for a, b in zip(seen[0], first.model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


seen: list = []
