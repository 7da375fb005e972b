"""What is printed and written while a training runs."""

import io
import json
import math
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist import KerasdistError, evaluate, fit
from kerasdist.devices.placement import place
from kerasdist.engine.engine import Engine
from kerasdist.engine.settings import Settings
from kerasdist.phases.phase import Phase
from kerasdist.runs.atomic import as_json, as_number
from kerasdist.training.progress.meter import Meter, Reading
from kerasdist.training.progress.reporter import Reporter, as_text, mode_of
from kerasdist.training.run import KeptRun


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_the_meter_counts_only_what_is_added():
    clock = Clock()
    meter = Meter(clock)
    assert all(math.isnan(rate) for rate in meter.rates())  # Not 0: nothing was measured.
    clock.now += 50  # Compiling.
    meter.restart()
    clock.now += 2
    meter.add(num_steps=4, num_examples=128, waited=0.5)
    first = meter.reading()
    clock.now += 30  # An evaluation.
    meter.restart()
    clock.now += 2
    meter.add(num_steps=4, num_examples=72, waited=1.0)
    assert meter.rates() == (200 / 4, 4 / 8)
    assert meter.reading() == (4.0, 8, 200, 1.5)
    assert meter.reading().since(first) == (2.0, 4, 72, 1.0)


def test_the_share_of_waiting_is_one_or_unknown():
    assert Reading(2.0, 4, 72, 1.0).share_waited == 0.5
    # The computer's clock was set meanwhile.
    assert Reading(2.0, 4, 72, -60.0).share_waited == 0.0
    assert Reading(2.0, 4, 72, 60.0).share_waited == 1.0
    assert math.isnan(Reading(0.0, 0, 0, 0.0).share_waited)
    assert math.isnan(Reading(2.0, 4, 72, math.nan).share_waited)


def reporter(mode):
    stream = io.StringIO()
    now = time.struct_time((2026, 11, 16, 10, 2, 11, 0, 320, 0))
    return Reporter(mode, stream=stream, now=lambda: now), stream


@pytest.mark.parametrize(
    ("loss", "text"),
    [(2.3141, "2.31"), (0.5, "0.50"), (0.00123456, "0.00123"), (1234.5, "1234.50")],
)
def test_a_log_line_has_the_tutorials_format(loss, text):
    plain, stream = reporter("lines")
    plain.step(100, loss, 812.34, 0.1576)
    assert stream.getvalue() == (
        f"2026-11-16 10:02:11: step 100, loss = {text} (812.3 examples/sec; 0.158 sec/batch)\n"
    )


def test_lines_of_steps_come_at_most_once_per_second():
    clock, stream = Clock(), io.StringIO()
    thinned = Reporter("lines", stream=stream, seconds_between_steps=1.0, clock=clock)
    for step in range(10, 130, 10):
        thinned.step(step, 0.5, 800.0, 0.01)
        if step % 40 == 0:
            thinned.epoch(step // 40 - 1, 3, {"loss": 0.5})
        clock.now += 0.3
    told = [line.split(": ", 1)[1].split(",")[0] for line in stream.getvalue().splitlines()]
    # Every epoch has its line.
    epochs = ["epoch 1/3", "epoch 2/3", "epoch 3/3"]
    assert told == ["step 10", epochs[0], "step 50", epochs[1], "step 90", epochs[2]]


def test_json_has_every_step():
    stream = io.StringIO()
    lines = Reporter("json", stream=stream, seconds_between_steps=1.0, clock=Clock())
    for step in range(5):
        lines.step(step, 0.5, 800.0, 0.01)
    assert len(stream.getvalue().splitlines()) == 5


def test_a_step_that_was_not_timed_says_so():
    plain, stream = reporter("lines")
    plain.step(1, 2.0, math.nan, math.nan)
    assert "not timed" in stream.getvalue()
    assert "nan" not in stream.getvalue()


def test_an_epoch_line_has_every_metric():
    plain, stream = reporter("lines")
    plain.epoch(1, 5, {"loss": 0.12345, "per_class": [0.5, 1.0]})
    plain.epoch(1, None, {"loss": 0.5})
    assert stream.getvalue() == (
        "2026-11-16 10:02:11: epoch 2/5, loss = 0.1235, per_class = [0.5, 1]\n"
        "2026-11-16 10:02:11: epoch 2, loss = 0.5\n"
    )


def test_json_lines_are_objects_that_every_reader_accepts():
    lines, stream = reporter("json")
    lines.say("not this")
    lines.event("start", run="runs/1")
    lines.step(1, 2.0, math.nan, math.inf)
    lines.epoch(0, 1, {"loss": np.float32(0.5), "val_auc": math.nan})

    def refuse(constant):
        raise ValueError(constant)

    objects = [json.loads(t, parse_constant=refuse) for t in stream.getvalue().splitlines()]
    assert objects == [
        {"event": "start", "run": "runs/1"},
        {
            "event": "step",
            "step": 1,
            "loss": 2.0,
            "examples_per_second": None,
            "seconds_per_step": None,
        },
        {"event": "epoch", "epoch": 1, "loss": 0.5, "val_auc": None},
    ]


@pytest.mark.parametrize("mode", ["lines", "json", "silent"])
def test_warnings_are_heard_in_every_mode(mode, capsys):
    told, stream = reporter(mode)
    told.warn("the disk is full")
    heard = stream.getvalue() + capsys.readouterr().err
    assert "the disk is full" in heard
    if mode == "json":
        assert json.loads(heard) == {"event": "warning", "message": "the disk is full"}


def test_silence_is_silent():
    silent, stream = reporter("silent")
    silent.say("x")
    silent.event("x")
    silent.step(1, 1.0, 1.0, 1.0)
    silent.epoch(0, 1, {"loss": 1.0})
    assert stream.getvalue() == ""


def test_progress_is_one_of_five():
    """Where there is no terminal; see test_display for others."""
    assert [mode_of(p) for p in (False, True, "auto", "lines", "json")] == [
        "silent",
        "lines",
        "lines",
        "lines",
        "json",
    ]
    for wrong in ("jsn", None, []):
        with pytest.raises(KerasdistError, match="Expected 'auto', 'lines', 'json' or False"):
            mode_of(wrong)


def test_values_become_pythons_own():
    assert as_number(tf.constant([1.0, 2.0])) == [1.0, 2.0]
    assert isinstance(as_number(np.float32(1)), float)
    assert json.loads(as_json({"a": (np.int64(3), [math.inf])})) == {"a": [3, [None]]}
    assert as_text({"loss": 0.123456, "steps": 12}) == "loss = 0.1235, steps = 12"


# What a training measures.


def train(times_input, devices, schedule=0.125, pause=0.0, batches=20):
    """Trains 5 steps at once and then the rest; the engine, and both outcomes."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dropout(0.5)])
    model.compile(keras.optimizers.Adam(schedule), "mse")
    model.optimizer.build(model.trainable_variables)
    settings = Settings(shards=2, times_input=times_input, deterministic=True)
    engine = Engine(model, place(devices), settings)
    random = np.random.default_rng(0)
    x, y = (random.normal(size=(batches, 8, n)).astype("float32") for n in (4, 3))

    def read():
        for i in range(batches):
            time.sleep(pause)
            yield x[i], y[i]

    spec = tuple(tf.TensorSpec((8, n), tf.float32) for n in (4, 3))
    iterator = iter(tf.data.Dataset.from_generator(read, output_signature=spec))
    return engine, engine.train(iterator, 5), engine.train(iterator, batches)


@pytest.mark.parametrize("devices", [1, 2])
def test_waiting_for_batches_is_measured_and_changes_no_bit(devices):
    plain, *unmeasured = train(False, devices, pause=0.01)
    timed, first, second = train(True, devices, pause=0.01)
    assert all(math.isnan(outcome.waited) for outcome in unmeasured)
    # What a generator sleeps, which may have begun a little before the waiting; sleeping may take
    # longer on a busy machine.
    assert 4 * 0.01 <= first.waited < 5
    assert 13.5 * 0.01 <= second.waited < 5
    assert (second.num_steps, second.num_examples) == (15, 120)
    expected, found = plain.state.snapshot(), timed.state.snapshot()
    assert expected.keys() == found.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(array, found[name])
    # Steps are not part of it: nearly all of the time would be waiting. The best of some, since a
    # tiny step takes about as long as handing over its batch.
    batch = np.ones((8, 4), "float32"), np.ones((8, 3), "float32")
    ready = iter(tf.data.Dataset.from_tensors(batch).repeat().prefetch(8))
    shares = []
    for _ in range(5):
        began = time.perf_counter()
        waited = timed.train(ready, 50).waited
        shares.append(waited / (time.perf_counter() - began))
    assert 0 <= min(shares) < 0.85


@pytest.mark.parametrize("devices", [1, 2])
def test_the_learning_rate_is_that_of_the_last_step(devices):
    halved = keras.optimizers.schedules.PiecewiseConstantDecay([4, 10], [0.5, 0.25, 0.125])
    _, first, second = train(False, devices, halved)
    # The fifth step is number 4, counted from 0.
    assert (first.learning_rate, second.learning_rate) == (0.5, 0.125)
    _, first, _ = train(False, devices, 0.25)
    assert first.learning_rate == 0.25


def test_a_float16_loss_scale_hides_no_learning_rate():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([1], [0.5, 0.25])
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(rates)), "mse")
    model.optimizer.build(model.trainable_variables)
    engine = Engine(model, place("cpu"), Settings(shards=1))
    data = tf.data.Dataset.from_tensors((np.ones((8, 4)), np.ones((8, 3)))).repeat()
    iterator = iter(data)
    assert [engine.train(iterator, n).learning_rate for n in (1, 1, 1)] == [0.5, 0.5, 0.25]


def test_rates_are_in_the_log_of_a_run(tmp_path):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    rates = keras.optimizers.schedules.PiecewiseConstantDecay([1, 3], [0.5, 0.001, 0.25])
    model.compile(keras.optimizers.SGD(rates), "mse")
    x, y = np.ones((40, 4), "float32"), np.ones((40, 3), "float32")
    options = {"batch_size": 8, "log_every": 2, "epochs": 1, "run_dir": tmp_path / "run"}
    fit(model, (x, y), progress=False, summary_every=4, **options)
    content = (tmp_path / "run" / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in content.splitlines()]
    assert [(n["kind"], n["step"], n["learning_rate"]) for n in lines] == [
        ("step", 2, 0.5),
        ("step", 4, 0.001),  # An observed step, and not the digits of the nearest float32.
        ("epoch", 5, 0.25),
    ]


def test_validation_is_told_batch_by_batch_and_stays_the_same(monkeypatch):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse", metrics=["mae"])
    random = np.random.default_rng(0)
    data = tuple(random.normal(size=(50, n)).astype("float32") for n in (4, 3))
    plain = evaluate(model, data, batch_size=8)
    told = []
    monkeypatch.setattr("kerasdist.training.inference.is_shown", lambda: True)
    monkeypatch.setattr(Phase, "reached", lambda phase, *numbers: told.append(numbers))
    assert evaluate(model, data, batch_size=8) == plain
    assert told[:2] == [(0, 7), (1, 7)]
    assert told[-1] == (7, 7)
    # A batch that takes longer than a call is to last: one a call.
    told.clear()
    monkeypatch.setattr("kerasdist.training.epochs.validation.SECONDS_PER_CALL", 1e-9)
    assert evaluate(model, data, batch_size=8, steps=5)
    assert told == [(n, 5) for n in range(6)]


def test_something_may_be_done_at_each_epochs_end_when_its_log_is_written(tmp_path, monkeypatch):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    model.compile("sgd", "mse")
    written = []

    def look():
        lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
        written.append([json.loads(line)["epoch"] for line in lines])

    monkeypatch.setattr(KeptRun, "write_page", lambda run: look())
    data = np.ones((40, 4), "float32"), np.ones((40, 3), "float32")
    fit(model, data, batch_size=8, epochs=3, run_dir=tmp_path / "run", progress=False)
    assert written == [[1], [1, 2], [1, 2, 3]]
