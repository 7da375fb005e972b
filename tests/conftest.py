"""Six logical CPUs for every test, fixed seeds, and no TensorFlow start-up noise."""

import json
import os
from dataclasses import dataclass

os.environ["KERASDIST_LOGICAL_CPUS"] = "6"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

if int(os.environ.get("KERASDIST_FAKE_GPUS", "0")):
    from tests.gpu import fake_gpu

    fake_gpu.load()  # Then `devices=2` means two of them.

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.cli import main
from kerasdist.training import inference, session

SHARED_DATA = os.path.join(os.path.dirname(__file__), "..", "..", "shared", "data")


@pytest.fixture(autouse=True)
def fixed_seeds():
    """Each test starts from the same seeds and leaves Keras's settings as they were."""
    keras.utils.set_random_seed(7)
    policy, floatx = keras.config.dtype_policy(), keras.config.floatx()
    yield
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(policy)


@dataclass(frozen=True)
class Outcome:
    """How a command ended, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def lines(self):
        return self.out.splitlines()

    @property
    def objects(self):
        return [json.loads(line) for line in self.lines]


@pytest.fixture
def command(tmp_path, monkeypatch, capfd):
    """Calls the command line in an empty folder; file descriptors are read, for C++ writes too."""
    monkeypatch.chdir(tmp_path)

    def call(*argv):
        capfd.readouterr()
        code = main.main([str(argument) for argument in argv])
        return Outcome(code, *capfd.readouterr())

    return call


@pytest.fixture
def engines(monkeypatch):
    """The engines that `fit` made."""
    made = []

    class Kept(session.Engine):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

        def close(self):
            """Its copies stay: tests look at them."""

    monkeypatch.setattr(session, "Engine", Kept)
    return made


@pytest.fixture
def not_compiled(monkeypatch):
    """The error must come before the engine, which compiles, is made."""

    def engine(*args, **kwargs):
        raise AssertionError("an engine was made before the error")

    for module in (session, inference):
        monkeypatch.setattr(module, "Engine", engine)


@pytest.fixture
def regression():
    """A small `(x, y)` of 37 examples: no batch size of the tests divides it."""
    random = np.random.default_rng(0)
    x = random.normal(size=(37, 5)).astype("float32")
    return x, (x @ random.normal(size=(5, 2))).astype("float32")


@pytest.fixture
def shared_data():
    """The real data sets, where they are."""
    if not os.path.isdir(SHARED_DATA):
        pytest.skip("needs the real data of ../shared/data, which a public clone does not have")
    return SHARED_DATA


assert kerasdist.list_devices()  # TensorFlow starts here, with six CPUs.
