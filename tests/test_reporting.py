"""What is printed and written while a training runs."""

import io
import json
import math
import time

import numpy as np
import pytest
import tensorflow as tf

from kerasdist import KerasdistError
from kerasdist.reporting import Meter, Reporter, as_json, as_number, as_text, mode_of


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
    meter.add(num_steps=4, num_examples=128)
    clock.now += 30  # An evaluation.
    meter.restart()
    clock.now += 2
    meter.add(num_steps=4, num_examples=72)
    assert meter.rates() == (200 / 4, 4 / 8)


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


def test_progress_is_one_of_four():
    assert [mode_of(p) for p in (False, True, "auto", "json")] == [
        "silent",
        "lines",
        "lines",
        "json",
    ]
    for wrong in ("jsn", None, []):
        with pytest.raises(KerasdistError, match="Expected 'auto', 'json' or False"):
            mode_of(wrong)


def test_values_become_pythons_own():
    assert as_number(tf.constant([1.0, 2.0])) == [1.0, 2.0]
    assert isinstance(as_number(np.float32(1)), float)
    assert json.loads(as_json({"a": (np.int64(3), [math.inf])})) == {"a": [3, [None]]}
    assert as_text({"loss": 0.123456, "steps": 12}) == "loss = 0.1235, steps = 12"
