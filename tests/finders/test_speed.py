"""The speed of a trial, with data whose reading takes a known time."""

import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.engine.compiled_loop import END_OF_DATA, REACHED, Outcome
from kerasdist.finders import api
from kerasdist.finders import speed as speeds

PAUSE = 0.005


class Slow:
    """Examples that take `PAUSE` seconds each to read."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        time.sleep(PAUSE)
        return np.full(4, index % 7, "float32"), np.float32(0)


def build():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


class Pause(keras.layers.Layer):
    """Takes `PAUSE` seconds per example to compute."""

    def call(self, x):
        def wait(values):
            time.sleep(PAUSE * len(values))
            return values

        found = tf.numpy_function(wait, [x], tf.float32)
        return tf.ensure_shape(found, x.shape)


def test_what_is_read_ahead_before_the_clock_starts_is_not_free(monkeypatch):
    """While the first batch of a pass is computed, the second is read; the first is waited for."""
    monkeypatch.setattr(api, "TRIAL_SECONDS", 0.3)

    def build_slow():
        model = keras.Sequential([keras.Input((4,)), Pause(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model

    found = kerasdist.find_batch_size(build_slow, Slow(54), batch_size=27)
    by_size = {trial.batch_size: trial.examples_per_second for trial in found.trials}
    # Two batches: read, read and compute, compute. One batch: read, compute.
    for size, expected in ((27, 54 / (81 * PAUSE)), (54, 54 / (108 * PAUSE))):
        assert 0.7 * expected < by_size[size] < 1.1 * expected


def known_rate():
    """What one thread can read, which sleeps a little longer than it was asked to."""
    began, data = time.perf_counter(), Slow(50)
    for index in range(50):
        data[index]
    return 50 / (time.perf_counter() - began)


@pytest.mark.parametrize("count", [54, 4000])
def test_the_speed_includes_reading_with_any_number_of_batches(monkeypatch, count):
    monkeypatch.setattr(api, "TRIAL_SECONDS", 0.3)
    monkeypatch.setattr(api.batch_trial, "num_examples", lambda options, size: 54)
    found = kerasdist.find_batch_size(build, Slow(count), batch_size=8)
    assert [trial.batch_size for trial in found.trials] == [8, 16, 32, 54]
    known = known_rate()  # The opening of a pass takes time, too.
    for trial in found.trials:
        assert 0.6 * known < trial.examples_per_second < 1.1 * known, trial


class Passes:
    """Steps whose pass of `batches` batches of 10 takes 0.1 s each, and 0.2 s to be opened."""

    def __init__(self, batches, opening=0.2, can_restart=True):
        self.batches, self.opening, self.can_restart = batches, opening, can_restart
        self.num_batches, self.num_passes, self.position, self.now = batches, 0, 0, 0.0

    def restart_pass(self):
        if self.can_restart:
            self.position = 0
        return self.can_restart

    def run_in_pass(self, count):
        done = min(count, self.batches - self.position)
        self.now += (self.opening if self.position == 0 else 0.0) + 0.1 * done
        self.position += done
        is_end = done < count
        if is_end:
            self.position, self.num_passes = 0, self.num_passes + 1
        return Outcome(done, 10 * done, END_OF_DATA if is_end else REACHED, 0.0)


@pytest.mark.parametrize("can_restart", [True, False])
@pytest.mark.parametrize(
    ("batches", "rate"), [(1, 10 / 0.3), (2, 20 / 0.4), (20, 200 / 2.2), (1000, 100.0)]
)
def test_short_passes_are_measured_as_a_whole(monkeypatch, batches, rate, can_restart):
    passes = Passes(batches, can_restart=can_restart)
    monkeypatch.setattr(speeds.time, "perf_counter", lambda: passes.now)
    assert speeds.speed(passes, 10, 1.0) == pytest.approx(rate)
    assert passes.now < 10


def test_slow_steps_are_few(monkeypatch):
    passes = Passes(1000, opening=0.0)
    monkeypatch.setattr(speeds.time, "perf_counter", lambda: 100 * passes.now)
    assert speeds.speed(passes, 10, 1.0) == pytest.approx(1.0)
    assert passes.position <= 3
