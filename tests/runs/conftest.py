"""Undisturbed runs to compare with, a disk that fails, and `kerasdist fit` of a small recipe."""

import errno
import os

import pytest

from kerasdist.cli import main
from kerasdist.runs import folder, metrics_log
from kerasdist.runs.checkpoints import Files
from kerasdist.runs.file_names import FINAL
from kerasdist.training.epochs.loop import Loop
from tests.runs.small_runs import fit


@pytest.fixture(scope="session")
def whole(tmp_path_factory):
    """A run that nobody disturbed."""
    path = tmp_path_factory.mktemp("whole") / "run"
    fit(path, progress=False)
    return path


@pytest.fixture(scope="session")
def longer(tmp_path_factory):
    """The same, of one more epoch."""
    path = tmp_path_factory.mktemp("longer") / "run"
    fit(path, epochs=5, progress=False)
    return path


class Disk:
    """Every way that a run writes fails while `number` is set."""

    def __init__(self, monkeypatch):
        self.number = None
        self.num_failures = 0
        for name in ("write", "mkdir"):
            call = staticmethod(self._guarded(getattr(Files, name)))
            monkeypatch.setattr(Files, name, call)
        monkeypatch.setattr(metrics_log, "open", self._guarded(open), raising=False)
        for name in ("save_model", "write_json"):
            monkeypatch.setattr(folder, name, self._guarded(getattr(folder, name)))

    def _guarded(self, call):
        def guarded(*args, **options):
            if self.number is not None:
                self.num_failures += 1
                # With names that are never the same: it is one trouble all the same.
                name = f"file-{self.num_failures}"
                raise OSError(self.number, os.strerror(self.number), name)
            return call(*args, **options)

        return guarded

    def fail(self, number):
        self.number = number

    def work(self):
        self.number = None


@pytest.fixture
def disk(monkeypatch):
    return Disk(monkeypatch)


@pytest.fixture
def make_room(monkeypatch):
    """There is no room for final.keras, of which half is written, until this is called."""
    save = folder.save_model

    def full(model, path):
        if FINAL in path.name:
            path.write_bytes(b"half of it")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return save(model, path)

    monkeypatch.setattr(folder, "save_model", full)
    return lambda: monkeypatch.setattr(folder, "save_model", save)


CONFIG = """
from dataclasses import dataclass

@dataclass(frozen=True)
class Config:
    batch_size: int = 8
    epochs: int = 4
    huge: int = -1
"""
DATA = """
import numpy as np

def build_data(config, split):
    random = np.random.default_rng(split == "train")
    x = random.normal(size=(40, 4)).astype("float32")
    y = x.sum(1, keepdims=True)
    if split == "train" and config.huge >= 0:
        x[config.huge] = 3e38  # Its square is infinite.
    return {"x": x, "y": y}
"""
MODEL = '''
"""A regression."""
import keras
import kerasdist

class Tiny(kerasdist.Model):
    features = "x"
    targets = "y"

    def __init__(self):
        super().__init__()
        self.out = keras.layers.Dense(1)

    def call(self, x, training=False):
        return self.out(x)

    def defaults(self):
        return dict(optimizer=keras.optimizers.Adam(0.1), loss="mse")

def build_model(config):
    return Tiny()
'''


@pytest.fixture
def fit_command(tmp_path, monkeypatch, capfd):
    """Calls `kerasdist fit` of a small recipe; returns its exit code, output and errors."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tiny").mkdir()
    for name, content in (("config", CONFIG), ("data", DATA), ("model", MODEL)):
        (tmp_path / "tiny" / f"{name}.py").write_text(content)
    count = Loop._count

    def call(run, *more, actions=None):
        def count_and_act(loop, outcome):
            count(loop, outcome)
            if outcome.num_steps:
                (actions or {}).get(loop.step, lambda: None)()

        monkeypatch.setattr(Loop, "_count", count_and_act)
        capfd.readouterr()
        options = ("--save-every", "2", "--log-every", "1", "--deterministic", "--shards", "2")
        code = main.main(["fit", "tiny", "--run-dir", str(run), *options, *more])
        return code, *capfd.readouterr()

    return call
