"""Six logical CPUs for every test, fixed seeds, and no TensorFlow start-up noise.

On a machine with GPUs, `devices=2` means two of them. Tests that need more GPUs are skipped.
"""

import fnmatch
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path

os.environ["KERASDIST_LOGICAL_CPUS"] = "6"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

if int(os.environ.get("KERASDIST_FAKE_GPUS", "0")):
    from tests.gpu import fake_gpu

    fake_gpu.load()  # Then `devices=2` means two of them.
else:
    # Tests and the processes they start share real GPUs, and compare float32 with NumPy.
    os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
    os.environ.setdefault("NVIDIA_TF32_OVERRIDE", "0")

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.cli import main
from kerasdist.errors import KerasdistError
from kerasdist.phases import displays
from kerasdist.training import engines as engines_module

SHARED_DATA = os.path.join(os.path.dirname(__file__), "..", "..", "shared", "data")


def too_few_gpus(error, num_gpus):
    """Why a test cannot run here, if its error says that it needs a GPU more than there are.

    Always None on a machine without GPUs: there, too few devices are a failure.
    """
    while num_gpus and error is not None:
        missing = re.search(r"there is no device 'GPU:(\d+)'", str(error))
        if isinstance(error, KerasdistError) and missing and int(missing[1]) >= num_gpus:
            return f"needs GPU:{missing[1]}, and the number of GPUs is {num_gpus}"
        error = error.__cause__ or error.__context__  # `pytest.raises` expected another error.
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    """Marks what `second_tier.txt` lists as slow."""
    lines = (Path(__file__).parent / "second_tier.txt").read_text().splitlines()
    patterns = [f"tests/{line}" for line in lines if line and not line.startswith("#")]
    pattern = re.compile("|".join(map(fnmatch.translate, patterns)))
    for item in items:
        if pattern.match(item.nodeid):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.excinfo is not None and report.failed:
        reason = too_few_gpus(call.excinfo.value, len(tf.config.get_visible_devices("GPU")))
        if reason is not None:
            report.outcome = "skipped"
            report.longrepr = (str(item.path), item.location[1] or 0, f"Skipped: {reason}")
    return report


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
    """Calls the command line in an empty folder; file descriptors are read, for C++ writes too.

    A busy machine makes phases long: their lines would be among the errors.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(displays, "SECONDS_BETWEEN_LINES", 1e9)

    def call(*argv):
        capfd.readouterr()
        code = main.main([str(argument) for argument in argv])
        return Outcome(code, *capfd.readouterr())

    return call


@pytest.fixture
def engines(monkeypatch):
    """The engines that `fit` made."""
    made = []

    class Kept(engines_module.Engine):
        def __init__(self, *args, **kwargs):
            super().__init__(*args, **kwargs)
            made.append(self)

        def close(self):
            """Its copies stay: tests look at them."""

    monkeypatch.setattr(engines_module, "Engine", Kept)
    return made


@pytest.fixture
def not_compiled(monkeypatch):
    """The error must come before the engine, which compiles, is made."""

    def engine(*args, **kwargs):
        raise AssertionError("an engine was made before the error")

    monkeypatch.setattr(engines_module, "Engine", engine)


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


tf.config.experimental.enable_tensor_float_32_execution(False)
assert kerasdist.list_devices()  # TensorFlow starts here, with six CPUs.
