"""A run can be resumed with other versions. It names them, and its weights agree.

Needs a second environment: `KERASDIST_OTHER_PYTHON` is its Python. `.ci/run` has one with the
oldest versions.
"""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kerasdist.versions import number

ROOT = Path(__file__).resolve().parents[2]
OTHER = os.environ.get("KERASDIST_OTHER_PYTHON", "")
pytestmark = pytest.mark.skipif(not OTHER, reason="needs KERASDIST_OTHER_PYTHON")


def train(python, folder, epochs, run, devices=2):
    """Trains to `epochs`: the weights, what was printed, and the versions."""
    weights = folder / f"{run}-{epochs}-{devices}.npz"
    others = {k: v for k, v in os.environ.items() if k != "KERASDIST_LOGICAL_CPUS"}
    words = [str(epochs), str(folder / run), str(weights), str(devices)]
    done = subprocess.run(
        [python, "-m", "tests.versions.training", *words],
        cwd=ROOT,
        env={**others, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-5000:]
    with np.load(weights) as found:
        arrays = [found[name] for name in found.files]
    return arrays, done.stdout + done.stderr, done.stdout.splitlines()[-1].split()[1:]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return {
        name: train(python, folder, 3, name)
        for name, python in {"this": sys.executable, "other": OTHER}.items()
    }


def assert_close(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)


def test_the_versions_are_others(undisturbed):
    this, other = (undisturbed[name][2] for name in ("this", "other"))
    assert [number(v) for v in this] != [number(v) for v in other]


def test_both_train_to_the_same_within_float32(undisturbed):
    assert_close(undisturbed["this"][0], undisturbed["other"][0])


@pytest.mark.parametrize("first", ["this", "other"])
def test_a_run_resumed_with_other_versions_says_so_and_ends_the_same(first, undisturbed, tmp_path):
    pythons = {"this": sys.executable, "other": OTHER}
    second = "other" if first == "this" else "this"
    train(pythons[first], tmp_path, 1, "mixed")
    weights, told, versions = train(pythons[second], tmp_path, 3, "mixed")
    before = undisturbed[first][2]
    assert "was saved with other versions or hardware" in told
    assert "may not be bit-identical" in told
    for name, old, new in zip(("tensorflow", "keras"), before, versions, strict=True):
        if old != new:
            assert f"{name} was {old!r} and is {new!r}" in told
    assert_close(weights, undisturbed[first][0])


def test_each_has_its_bits_on_one_device_too(undisturbed, tmp_path):
    for name, python in {"this": sys.executable, "other": OTHER}.items():
        weights, *_ = train(python, tmp_path, 3, name, devices=1)
        for one, other in zip(weights, undisturbed[name][0], strict=True):
            np.testing.assert_array_equal(one, other)
