"""`--find-batch-size` on fake GPUs with little memory: the largest batch fits, more does not."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import fake_gpu

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(fake_gpu.why_not() is not None, reason=str(fake_gpu.why_not())),
]
ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
from dataclasses import dataclass


@dataclass(frozen=True)
class Config:
    batch_size: int = 32
    epochs: int = 1
"""
DATA = """
import numpy as np


def build_data(config, split):
    x = np.random.default_rng(0).normal(size=(4096, 64)).astype("float32")
    return x, x[:, :1]
"""
# An example takes 32 kB: twice 4,096 activations.
MODEL = '''
"""Wide."""
import keras


def build_model(config):
    layers = [keras.Input((64,)), keras.layers.Dense(4096, "relu"), keras.layers.Dense(1)]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    return model
'''


def test_the_largest_batch_that_fits_is_found(tmp_path):
    recipe = tmp_path / "wide"
    recipe.mkdir()
    for name, text in (("config", CONFIG), ("data", DATA), ("model", MODEL)):
        (recipe / f"{name}.py").write_text(text)
    # Python imports it when it starts: the processes of the trials have fake GPUs, too.
    (tmp_path / "sitecustomize.py").write_text("from tests.gpu import fake_gpu\nfake_gpu.load()\n")
    environ = {
        **{k: v for k, v in os.environ.items() if k != "KERASDIST_LOGICAL_CPUS"},
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "CUDA_VISIBLE_DEVICES": "",
        "KERASDIST_FAKE_GPU_MB": "32",
        "TF_CPP_MIN_LOG_LEVEL": "3",
        fake_gpu.NUM: "2",
    }

    def fit(*more):
        argv = [sys.executable, "-m", "kerasdist", "fit", "wide", "--jit", "off", *more]
        return subprocess.run(
            argv, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=900
        )

    done = fit("--find-batch-size", "--json", "--batch-size", "2048")  # 512 is the first.
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["is_gpu"]
    assert len(found["devices"]) == 2
    largest = found["largest"]
    assert 256 <= largest < 4096, found
    refused = [trial for trial in found["trials"] if not trial["fits"]]
    assert refused, found
    assert all(trial["note"] == "does not fit" for trial in refused)
    assert min(trial["batch_size"] for trial in refused) <= largest * 9 / 8 + 1
    assert max(t["memory"] for t in found["trials"] if t["fits"]) <= 32 * 2**20
    assert fit("--batch-size", str(largest), "--steps", "2").returncode == 0
    too_large = fit("--batch-size", str(min(t["batch_size"] for t in refused)), "--steps", "2")
    assert too_large.returncode == 1
    assert "is out of memory" in too_large.stderr
