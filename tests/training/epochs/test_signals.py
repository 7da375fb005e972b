"""What stops a training between two steps, and what is kept then."""

import errno
import io
import json
import os
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.training.epochs.signals import Interrupts, LostReaderError


class Reader(io.StringIO):
    """An output whose reader leaves after some lines."""

    def __init__(self, lines):
        super().__init__()
        self.lines = lines

    def write(self, text):
        self.lines -= text.count("\n")
        if self.lines < 0:
            raise BrokenPipeError(errno.EPIPE, "no reader")
        return super().write(text)


def trained(run_dir, epochs=6):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x = np.random.default_rng(0).normal(size=(40, 3)).astype("float32")
    y = x.sum(axis=1, keepdims=True)
    kerasdist.fit(model, x, y, batch_size=8, epochs=epochs, seed=1, run_dir=run_dir)
    return model.get_weights()


def test_a_training_is_saved_when_nobody_reads_its_output(tmp_path, monkeypatch):
    expected = trained(tmp_path / "whole")
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", Reader(7))
        with pytest.raises(LostReaderError):
            trained(tmp_path / "cut")
    assert not (tmp_path / "cut/result.json").exists()
    log = (tmp_path / "cut/metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step"] for line in log]
    (checkpoint,) = sorted((tmp_path / "cut/checkpoints").iterdir())[-1:]
    assert 0 < steps[-1] < 30
    assert str(steps[-1]) in checkpoint.name
    for mine, whole in zip(trained(tmp_path / "cut"), expected, strict=True):
        np.testing.assert_array_equal(mine, whole)


def test_without_a_run_it_stops(monkeypatch):
    monkeypatch.setattr(sys, "stdout", Reader(2))
    with pytest.raises(BrokenPipeError):
        trained(None)


def test_ctrl_c_after_the_reader_left_still_saves():
    """Ctrl-C also ends the `tee` of `fit | tee log`: either may be noticed first."""
    with Interrupts().watching() as interrupts:
        interrupts.lose_reader()
        assert interrupts.received == signal.SIGPIPE
        os.kill(os.getpid(), signal.SIGINT)
        assert interrupts.received == signal.SIGINT
        interrupts.lose_reader()
        assert interrupts.received == signal.SIGINT


def test_a_closed_connection_stops_it_unless_nohup_started_it():
    before = signal.getsignal(signal.SIGHUP)
    try:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)  # The tests may run with `nohup`.
        with Interrupts().watching() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupts.received == signal.SIGHUP
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with Interrupts().watching() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert interrupts.received is None
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


LATE = """
import os, signal, sys
import keras, numpy as np, kerasdist

def late(logs):
    os.kill(os.getpid(), getattr(signal, sys.argv[1]))

model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
callbacks = [keras.callbacks.LambdaCallback(on_train_end=late)]
x = np.ones((8, 2), "float32")
kerasdist.fit(model, x, x[:, :1], run_dir="run", callbacks=callbacks, progress=False)
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", -signal.SIGINT), ("SIGTERM", 143)])
def test_a_signal_at_the_very_end_ends_the_program_as_at_any_other_moment(name, code, tmp_path):
    """It ended with a class of kerasdist's own and with code 1. The result is kept."""
    done = subprocess.run(
        [sys.executable, "-c", LATE, name], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == code
    if name == "SIGINT":
        last = done.stderr.strip().splitlines()[-1]
        assert last == "KeyboardInterrupt: the training had ended, and its result is kept"
    assert json.loads((tmp_path / "run/result.json").read_text())["status"] == "finished"
