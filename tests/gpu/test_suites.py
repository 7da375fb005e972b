"""The suites of `suites.py` on 1, 2 and 4 fake GPUs, and with `-m gpu` on the real ones."""

import os
import re
import subprocess
import sys
from pathlib import Path

import keras
import pytest
import tensorflow as tf

import kerasdist
from tests.conftest import too_few_gpus
from tests.gpu import fake_gpu
from tests.gpu.suites import FAST, SUITES

ROOT = Path(__file__).resolve().parents[2]
needs_fake_gpus = pytest.mark.skipif(fake_gpu.why_not() is not None, reason=str(fake_gpu.why_not()))


def run_on_gpus(*tests, num_fakes=None, timeout=3600):
    """Runs tests in a process that sees only fake GPUs, or the real ones."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environ.pop(fake_gpu.NUM, None)
    if num_fakes is not None:
        environ |= {fake_gpu.NUM: str(num_fakes), "CUDA_VISIBLE_DEVICES": ""}
    options = ["-n", "0", "-p", "no:cacheprovider", "-q", "-rfEs", "--tb=short"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *tests],
        env=environ,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
    assert re.search(r"\b[1-9]\d* passed", done.stdout), done.stdout[-20_000:]


def test_the_suites_exist():
    for path in [*SUITES.values(), *(test.split("::")[0] for test in FAST)]:
        assert (ROOT / path).exists(), path


def test_a_test_that_needs_more_gpus_than_there_are_is_skipped_on_gpus_only():
    with pytest.raises(kerasdist.KerasdistError) as caught:
        kerasdist.fit(keras.Sequential([]), [[1.0]], devices=["GPU:77"])
    assert too_few_gpus(caught.value, 2) == "needs GPU:77, and the number of GPUs is 2"
    assert too_few_gpus(caught.value, 0) is None  # Without GPUs it is a failure.
    assert too_few_gpus(caught.value, 78) is None  # This device must be there.
    assert too_few_gpus(AssertionError("there is no device 'GPU:77'"), 2) is None
    with (
        pytest.raises(AssertionError) as other,
        pytest.raises(kerasdist.KerasdistError, match="x!"),
    ):
        raise caught.value
    assert too_few_gpus(other.value, 2) == "needs GPU:77, and the number of GPUs is 2"


def test_gpu_tests_do_not_run_by_default(request):
    options = request.config.getini("addopts")
    assert "not slow and not gpu" in options


@needs_fake_gpus
@pytest.mark.parametrize("num_gpus", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_some_of_the_suites_pass_on_fake_gpus(num_gpus):
    run_on_gpus(*FAST, num_fakes=num_gpus)


@pytest.mark.slow
@needs_fake_gpus
@pytest.mark.parametrize("num_gpus", [1, 2, 4])
@pytest.mark.parametrize("suite", SUITES)
def test_the_suites_pass_on_fake_gpus(suite, num_gpus):
    run_on_gpus(SUITES[suite], num_fakes=num_gpus)


@pytest.mark.gpu
@pytest.mark.parametrize("suite", SUITES)
def test_the_suites_pass_on_real_gpus(suite):
    if fake_gpu.is_loaded() or not tf.config.list_physical_devices("GPU"):
        pytest.skip("needs a real GPU, and TensorFlow sees none (`kerasdist doctor` says why)")
    run_on_gpus(SUITES[suite])
