"""A fit that was stopped and resumed ends like one that was not, on any number of devices."""

import json
import os
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.engine.engine import Engine
from kerasdist.runs.checkpoints import Store, recovery
from kerasdist.training.epochs.signals import Terminated
from kerasdist.training.progress import watch
from tests.runs.checkpoints.stopped_runs import TIMES, StopAt, X, Y, build, digest, fit, interrupted


def test_a_run_goes_on_within_an_epoch_with_all_its_history(tmp_path):
    options = {"deterministic": True, "ema": 0.9, "validation_data": (X, Y), "log_every": 1}
    whole = fit(tmp_path / "whole", **options)
    parts = interrupted(tmp_path / "parts", (5, 14), **options)
    assert digest(tmp_path / "whole") == digest(tmp_path / "parts")
    assert whole.history == parts.history
    assert whole.epoch == parts.epoch
    for a, b in zip(whole.ema_weights, parts.ema_weights, strict=True):
        np.testing.assert_array_equal(a, b)
    logs = [
        [
            {k: v for k, v in json.loads(line).items() if k not in TIMES}
            for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        ]
        for name in ("whole", "parts")
    ]
    assert logs[0] == logs[1]
    results = [
        json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "parts")
    ]
    assert results[0]["examples_seen"] == 4 * 50
    assert results[0].pop("examples_per_second") != results[1].pop("examples_per_second")
    assert results[0] == results[1]


def test_a_run_goes_on_on_other_numbers_of_devices(tmp_path):
    options = {"deterministic": True, "shards": 4}
    fit(tmp_path / "whole", **options)
    for devices, step in ((1, 5), (2, 12), (4, 20)):
        with pytest.raises(ZeroDivisionError):
            fit(tmp_path / "parts", devices=devices, callbacks=[StopAt(step)], **options)
    fit(tmp_path / "parts", devices=1, **options)
    assert digest(tmp_path / "whole") == digest(tmp_path / "parts")


class Watching(keras.callbacks.Callback):
    """Notes the learning rate of each step; a step that is trained again must have it again."""

    def __init__(self, rates):
        super().__init__()
        self.rates = rates

    def on_train_batch_end(self, batch, logs=None):
        optimizer = self.model.optimizer
        step, rate = int(optimizer.iterations), float(optimizer.learning_rate)
        assert self.rates.setdefault(step, rate) == rate


def test_in_float64_other_numbers_of_devices_give_the_same_weights_to_1e_9(tmp_path):
    """Without `deterministic`; data, augmentation and schedule are those of the whole run."""
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    data = {"x": X.astype("float64"), "index": np.arange(50), "y": Y}

    class Net(kerasdist.Model):
        features = "x"
        targets = "y"

        def __init__(self):
            super().__init__()
            self.inner = keras.Sequential(
                [
                    keras.layers.Dense(6, kernel_regularizer="l2"),
                    keras.layers.BatchNormalization(),
                    keras.layers.Dropout(0.3),
                    keras.layers.Dense(3),
                ]
            )

        def call(self, x, training=False):
            return self.inner(x, training=training)

        def defaults(self):
            schedule = keras.optimizers.schedules.CosineDecay(0.05, 40)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            return {"optimizer": keras.optimizers.Adam(schedule), "loss": loss}

    def train(folder, batches, rates, devices, stop=None):
        def note(seed, index, x):
            """Batches that are read ahead of a stop are read again: the same ones."""
            content = index.numpy().tolist(), x.numpy().tobytes()
            assert batches.setdefault(tuple(seed.numpy().tolist()), content) == content

        def augment(batch, seed):
            shape = tf.shape(batch["x"])
            x = batch["x"] + 0.1 * tf.random.stateless_normal(shape, seed, dtype=tf.float64)
            with tf.control_dependencies([tf.py_function(note, [seed, batch["index"], x], [])]):
                return {**batch, "x": tf.identity(x)}

        callbacks = [Watching(rates)] + ([StopAt(stop)] if stop else [])
        return kerasdist.fit(
            Net,
            data,
            run_dir=folder,
            batch_size=8,
            epochs=4,
            shards=4,
            ema=0.9,
            seed=0,
            save_every=3,
            devices=devices,
            augment=augment,
            callbacks=callbacks,
            progress=False,
        )

    batches, rates, batches_of_parts, rates_of_parts = {}, {}, {}, {}
    whole = train(tmp_path / "whole", batches, rates, 1)
    for devices, stop in ((1, 5), (2, 12), (4, 20)):
        with pytest.raises(ZeroDivisionError):
            train(tmp_path / "parts", batches_of_parts, rates_of_parts, devices, stop)
    parts = train(tmp_path / "parts", batches_of_parts, rates_of_parts, 1)
    assert len(batches) == len(rates) == 28
    assert rates == rates_of_parts
    assert len(set(rates.values())) > 20
    assert batches == batches_of_parts
    pairs = [
        *zip(whole.model.get_weights(), parts.model.get_weights(), strict=True),
        *zip(whole.ema_weights, parts.ema_weights, strict=True),
    ]
    for a, b in pairs:
        assert a.dtype == "float64"
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-9)
    assert parts.history["loss"] == pytest.approx(whole.history["loss"], abs=1e-9)


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
        "other settings: the data differ": {"data": (X + 1, Y)},
        "clip_norm was None and is 1.0": {"clip_norm": 1.0},
    }
    for message, change in cases.items():
        with pytest.raises(kerasdist.KerasdistError, match=message):
            fit(tmp_path / "run", **{"epochs": 2, **change})
    told = r"layer Dense differs: units.*another `run_dir` \(`--run-dir`\)"
    with pytest.raises(kerasdist.KerasdistError, match=told):
        kerasdist.fit(
            lambda: _other(),
            (X, Y),
            run_dir=tmp_path / "run",
            devices=1,
            batch_size=8,
            epochs=2,
            progress=False,
        )
    with pytest.raises(kerasdist.KerasdistError, match=r"already holds a run.*`resume=False`"):
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
    with pytest.raises(kerasdist.KerasdistError, match="the data differ"):
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
    with pytest.raises(kerasdist.KerasdistError, match="All checkpoints of the run are damaged"):
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


def test_a_run_goes_on_after_a_step_that_was_left_out(tmp_path):
    """The batch that was left out counts for the position in the data, though not as a step."""
    x = X.copy()
    x[20] = 3e38
    options = {"shuffle": False, "on_nan": "skip", "deterministic": True, "save_every": 2}
    fit(tmp_path / "whole", (x, Y), **options)
    interrupted(tmp_path / "parts", (5, 9), (x, Y), **options)
    assert digest(tmp_path / "whole") == digest(tmp_path / "parts")
    result = json.loads((tmp_path / "parts" / "result.json").read_text())
    assert (result["steps"], result["examples_seen"]) == (4 * 6, 4 * 42)


def test_at_most_ten_steps_in_a_row_are_left_out(tmp_path):
    options = {"shuffle": False, "on_nan": "skip", "batch_size": 4, "epochs": 1}
    x = X.copy()
    x[4:44:4] = 3e38
    history = fit(tmp_path / "ten", (x, Y), **options)
    assert int(history.model.optimizer.iterations) == 3
    x[44] = 3e38
    with pytest.raises(kerasdist.DivergedError, match="Step 2 is not finite: its loss"):
        fit(tmp_path / "eleven", (x, Y), **options)


def test_best_is_of_the_monitored_value_and_survives_a_restart(tmp_path):
    options = {"validation_data": (X, Y), "monitor": "val_accuracy", "deterministic": True}
    whole = fit(tmp_path / "whole", **options)
    interrupted(tmp_path / "parts", (17,), **options)
    best = [keras.models.load_model(tmp_path / name / "best.keras") for name in ("whole", "parts")]
    for a, b in zip(best[0].get_weights(), best[1].get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    found = kerasdist.evaluate(best[0], (X, Y), batch_size=8)
    assert found["accuracy"] == pytest.approx(max(whole.history["val_accuracy"]))
    with pytest.raises(kerasdist.KerasdistError, match=r"monitor='acuracy'.*accuracy"):
        fit(tmp_path / "typo", monitor="acuracy")


def test_the_best_model_of_several_devices_has_its_optimizer(tmp_path):
    history = fit(tmp_path / "run", devices=2, epochs=1)
    best = keras.models.load_model(tmp_path / "run" / "best.keras")
    assert int(best.optimizer.iterations) == 7
    pairs = zip(best.optimizer.variables, history.model.optimizer.variables, strict=True)
    for a, b in pairs:
        np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_the_best_of_before_a_restart_stays(tmp_path):
    """Labels that have nothing to do with those of the training: the first epoch is the best."""
    others = (Y + 1) % 3
    history = interrupted(tmp_path / "run", (13,), validation_data=(X, others))
    assert np.argmin(history.history["val_loss"]) == 0
    best = keras.models.load_model(tmp_path / "run" / "best.keras")
    found = kerasdist.evaluate(best, (X, others), batch_size=8)
    assert found["loss"] == pytest.approx(history.history["val_loss"][0])


# The end of an epoch that falls on a step that is saved.


class Epochs(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.ended, self.tested = [], []

    def on_epoch_end(self, epoch, logs=None):
        self.ended.append(epoch)

    def on_test_end(self, logs=None):
        self.tested.append(int(self.model.optimizer.iterations))


def generated():
    for start in range(0, 50, 8):
        yield X[start : start + 8], Y[start : start + 8]


@pytest.mark.parametrize("known", [True, False], ids=["arrays", "generator"])
def test_the_end_of_an_epoch_is_not_repeated_if_it_was_saved(tmp_path, known):
    """`save_every` is the length of an epoch, which a generator does not tell before."""
    counted = Epochs()
    options = {"save_every": 7, "validation_data": (X, Y), "deterministic": True}
    data = (X, Y) if known else generated
    if not known:
        options["batch_size"] = None
    fit(tmp_path / "whole", data, **options)
    interrupted(tmp_path / "parts", (9,), data, callbacks=[counted], **options)
    assert counted.ended == [0, 1, 2, 3]
    assert counted.tested == [7, 14, 21, 28]
    assert digest(tmp_path / "whole") == digest(tmp_path / "parts")


def test_the_last_step_of_an_epoch_is_saved_once_with_its_end(tmp_path, monkeypatch):
    saves = []
    original = recovery.Recovery.save

    def save(self, step, arrays, meta):
        saves.append((step, meta["epoch"], meta["step_in_epoch"]))
        original(self, step, arrays, meta)

    monkeypatch.setattr(recovery.Recovery, "save", save)
    monkeypatch.setattr(watch, "SECONDS_PER_CALL", 100.0)  # A call ends where a save is due.
    fit(tmp_path / "run", save_every=7, epochs=2)
    assert list(dict.fromkeys(saves)) == [(7, 1, 0), (14, 2, 0)]
    saves.clear()
    fit(tmp_path / "threes", save_every=3, epochs=2)
    assert list(dict.fromkeys(saves)) == [(3, 0, 3), (6, 0, 6), (9, 1, 2), (12, 1, 5), (14, 2, 0)]
    saves.clear()
    fit(tmp_path / "steps", save_every=3, epochs=1, steps=6, steps_per_epoch=3)
    assert list(dict.fromkeys(saves)) == [(3, 1, 0), (6, 2, 0)]


def test_a_signal_at_the_last_step_of_an_epoch_ends_it_once(tmp_path):
    """It is saved there at once: validation may take long. The end comes after the restart."""
    counted = Epochs()

    class Terminate(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if int(self.model.optimizer.iterations) == 7:
                os.kill(os.getpid(), signal.SIGTERM)

    options = {"save_every": 100, "validation_data": (X, Y), "deterministic": True}
    with pytest.raises(Terminated):
        fit(tmp_path / "parts", callbacks=[counted, Terminate()], **options)
    assert counted.ended == []
    saved = Store(tmp_path / "parts" / "checkpoints").newest()
    assert (saved.step, saved.meta["epoch"], saved.meta["step_in_epoch"]) == (7, 0, 7)
    with pytest.raises(ZeroDivisionError):
        fit(tmp_path / "parts", callbacks=[counted, StopAt(9)], **options)
    saved = Store(tmp_path / "parts" / "checkpoints").newest()
    assert (saved.step, saved.meta["epoch"], saved.meta["step_in_epoch"]) == (7, 1, 0)
    fit(tmp_path / "parts", callbacks=[counted], **options)
    assert counted.ended == [0, 1, 2, 3]
    fit(tmp_path / "whole", **options)
    assert digest(tmp_path / "whole") == digest(tmp_path / "parts")


@pytest.mark.parametrize(
    ("number", "raised"), [(signal.SIGTERM, Terminated), (signal.SIGINT, KeyboardInterrupt)]
)
def test_a_signal_after_the_last_step_is_delivered_when_the_run_is_finished(
    tmp_path, number, raised
):
    late = keras.callbacks.LambdaCallback(on_train_end=lambda logs: os.kill(os.getpid(), number))
    with pytest.raises(raised):
        fit(tmp_path / "run", epochs=1, callbacks=[late])
    assert json.loads((tmp_path / "run/result.json").read_text())["status"] == "finished"
    assert (tmp_path / "run/final.keras").exists()
    assert fit(tmp_path / "run", epochs=1).epoch == [0]


def test_what_was_logged_before_the_first_checkpoint_is_logged_once(tmp_path):
    interrupted(tmp_path / "run", (2,), log_every=1, save_every=100, epochs=1)
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in lines]
    assert steps == [1, 2, 3, 4, 5, 6, 7, 7]  # and the epoch


def test_how_many_steps_run_in_a_call_changes_no_bits(tmp_path, monkeypatch):
    calls = []
    train = Engine.train

    def counted(engine, iterator, num_steps):
        calls[-1].append(num_steps)
        return train(engine, iterator, num_steps)

    monkeypatch.setattr(Engine, "train", counted)
    for seconds in (100.0, 0.0):
        monkeypatch.setattr(watch, "SECONDS_PER_CALL", seconds)
        calls.append([])
        fit(tmp_path / str(seconds), deterministic=True, save_every="epoch")
    assert max(calls[0]) > 10
    assert max(calls[1]) == 1
    assert digest(tmp_path / "100.0") == digest(tmp_path / "0.0")


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


@pytest.mark.parametrize(
    ("first", "again", "told"),
    [
        ({"epochs": 2}, {"epochs": 2}, "already finished at step 14: 2 epochs; nothing is trained"),
        (
            {"epochs": 2},
            {"epochs": 1},
            "already finished at step 14: 2 epochs, and 1 was asked for; nothing is trained",
        ),
        (
            {"steps": 9},
            {"steps": 5},
            "already finished at step 9: 9 steps, and 5 were asked for; nothing is trained",
        ),
        ({"epochs": 1}, {"epochs": 2}, "continuing after step 7"),
    ],
)
def test_a_run_with_nothing_left_to_train_says_so(first, again, told, tmp_path, capsys):
    fit(tmp_path / "run", **first)
    capsys.readouterr()
    fit(tmp_path / "run", progress="lines", **again)
    assert told in capsys.readouterr().out
