"""When a training says how long an epoch takes, and from what."""

import time
from types import SimpleNamespace

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.training.progress import watch as watches
from kerasdist.training.progress.meter import Meter


@pytest.fixture
def watch():
    """A watch in front of its first epoch of 10 steps, with a clock that the test moves."""
    made = object.__new__(watches.Watch)
    now, said = [0.0], []
    made.meter = Meter(lambda: now[0])
    made.reporter = SimpleNamespace(say=said.append, epoch=lambda *_: None)
    made._run = SimpleNamespace(log=lambda **_: None, has_folder=lambda: False)
    made._tells_epoch, made._epoch_steps, made._late = True, 10, None
    made._may_be_endless = False
    made._at_epoch = made.meter.reading()

    def train(steps, seconds_per_step):
        for _ in range(steps):
            now[0] += seconds_per_step
            made.meter.add(1, 32)
            made._tell_long_epoch()

    made.train, made.said = train, said
    return made


def test_batches_that_were_read_while_the_first_step_compiled_do_not_count(watch):
    watch.train(9, 0.01)  # The first step compiled.
    watch.epoch(10, 0, 5, {}, None)
    assert watch.said == []
    watch.train(10, 0.045)
    watch.epoch(20, 1, 5, {}, None)
    assert watch.said == ["an epoch takes about 0.45 s, without validation"]
    watch.train(10, 0.09)
    watch.epoch(30, 2, 5, {}, None)
    assert len(watch.said) == 1


def test_a_long_epoch_is_told_before_it_ends(watch):
    watch._epoch_steps = 1000
    watch.train(91, 0.011)
    assert watch.said == []
    watch.train(100, 0.05)
    assert watch.said == ["an epoch takes about 50 s, without validation"]


def test_data_that_does_not_end_is_told_once(monkeypatch, capsys):
    """Outside a terminal, an endless generator trained without a word."""
    monkeypatch.setattr(watches, "_SECONDS_WITHOUT_END", 0.05)

    def batches(steps):
        for _ in range(steps):
            time.sleep(0.002)
            yield np.ones((2, 3), "float32"), np.ones((2, 1), "float32")

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    kerasdist.fit(model, lambda: batches(100), epochs=2)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "so far" in line]
    assert line.startswith("the first epoch has ")
    assert line.endswith(
        "nothing says when the data ends; if it never ends, pass `steps_per_epoch`"
    )
    kerasdist.fit(model, lambda: batches(100), epochs=1, steps_per_epoch=100)
    assert "so far" not in capsys.readouterr().out


def test_a_long_epoch_is_not_silent_in_a_log(monkeypatch, capsys):
    """Outside a terminal, `kerasdist.fit` printed nothing until the first epoch ended."""
    monkeypatch.setattr(watches, "_SECONDS_OF_SILENCE", 0.2)

    def batches():
        for _ in range(150):
            time.sleep(0.004)
            yield np.ones((2, 3), "float32"), np.ones((2, 1), "float32")

    model = keras.Sequential([keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    kerasdist.fit(model, batches)
    lines = capsys.readouterr().out.splitlines()
    assert 1 <= sum(": step " in line for line in lines) <= 6
    kerasdist.fit(model, batches, progress=False)
    assert capsys.readouterr().out == ""
