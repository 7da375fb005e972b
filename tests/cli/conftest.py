"""Small recipes and classes to train, and the command line in a process."""

import os
import subprocess
import sys

import pytest

CONFIG = """
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Config:
    batch_size: int = field(default=8, metadata={"help": "examples of one step"})
    epochs: int = field(default=2, metadata={"help": "passes over the data"})
    units: int = field(default=3, metadata={"help": "width of the hidden layer"})
    learning_rate: float = field(default=0.1, metadata={"help": "step size"})
"""
DATA = """
import numpy as np


def build_data(config, split):
    random = np.random.default_rng(split == "train")
    x = random.normal(size=(40, 4)).astype("float32")
    return {"x": x, "y": x.sum(1, keepdims=True)}
"""
MODEL = '''
"""A tiny regression."""
import keras
import kerasdist


@keras.saving.register_keras_serializable("test_cli")
class Tiny(kerasdist.Model):
    features = "x"
    targets = "y"

    def __init__(self, units=3, learning_rate=0.1, **kwargs):
        super().__init__(**kwargs)
        self.hidden = keras.layers.Dense(units)
        self.out = keras.layers.Dense(1)
        self.learning_rate = learning_rate

    def call(self, x, training=False):
        return self.out(self.hidden(x))

    def defaults(self):
        sgd = keras.optimizers.SGD(self.learning_rate)
        return dict(optimizer=sgd, loss="mse", metrics=["mae"])


def build_model(config):
    return Tiny(config.units, config.learning_rate)
'''
# A model and an old-style provider in one file, without annotations as in 2017.
BARE = '''
import keras
import numpy as np
import kerasdist


class Net(kerasdist.Model):
    """A dense net.

    Args:
        filters: Units of the hidden layer,
            all alike.
        rate (float): Step size.
    """

    features = "image"
    targets = "label"

    def __init__(self, filters=4, rate: float | None = None):
        super().__init__()
        self.layers_ = [keras.layers.Dense(filters), keras.layers.Dense(3)]
        self.rate = rate

    def call(self, image, training=False):
        for layer in self.layers_:
            image = layer(image)
        return image

    def defaults(self):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return dict(optimizer=keras.optimizers.SGD(self.rate or 0.1), loss=loss)


class Clips:
    def __init__(self, batch_size, data_pattern, fail_at=None, count: int = 4):
        """Reads clips.

        Args:
            data_pattern: Files to read.
        """
        self.batch_size = batch_size
        self.data_pattern = data_pattern
        self.fail_at, self.count, self.read = fail_at, count, 0

    def get_batch_data(self):
        self.read += 1
        if self.read == self.fail_at:
            raise ValueError(f"batch {self.read} of {self.data_pattern} is broken")
        if self.read > self.count:
            self.read = 0
            return None
        random = np.random.default_rng(self.read)
        return random.normal(size=(self.batch_size, 5)).astype("f"), np.arange(self.batch_size) % 3
'''


@pytest.fixture
def tiny(tmp_path):
    """A recipe of three small files."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name, content in (("config", CONFIG), ("data", DATA), ("model", MODEL)):
        (folder / f"{name}.py").write_text(content)
    return folder


@pytest.fixture
def bare(tmp_path):
    """`--model FILE.py:Net --data FILE.py:Clips` with the arguments that have no default."""
    (tmp_path / "bare.py").write_text(BARE)
    files = ("--model", "bare.py:Net", "--data", "bare.py:Clips")
    return (*files, "--batch-size", 6, "--data.data-pattern", "x/*.wav")


def environment():
    """Without the variables that the tests set for themselves."""
    own = ("KERASDIST_LOGICAL_CPUS", "TF_CPP_MIN_LOG_LEVEL")
    return {k: v for k, v in os.environ.items() if k not in own}


def start(*argv, **options):
    command = [sys.executable, "-m", "kerasdist", *(str(a) for a in argv)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment(), **{**pipes, **options})
