"""One of several GPUs is out of memory or stops: an error names it, and the run can be resumed."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.gpu import fake_gpu

pytestmark = pytest.mark.skipif(fake_gpu.why_not() is not None, reason=str(fake_gpu.why_not()))

ROOT = Path(__file__).resolve().parents[2]
NUM_STEPS = 16
# Within this many seconds an error must name the device.
LIMIT = 60


def environment(**more):
    names = {
        "KERASDIST_FAKE_GPUS": "2",
        "KERASDIST_FAKE_GPU_MB": "32",
        "KERASDIST_DEVICE_TIMEOUT": "45",
        "PYTHONPATH": str(ROOT),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
    return {k: v for k, v in os.environ.items() if k != "TF_CONFIG"} | names | more


def train(run_dir, *, timeout=None, gpus=2, **fault):
    """Trains in a process of its own. Returns it, and the seconds from the fault to its end."""
    options = json.dumps({"run_dir": str(run_dir), **fault})
    more = {"KERASDIST_FAKE_GPUS": str(gpus)}
    more |= {} if timeout is None else {"KERASDIST_DEVICE_TIMEOUT": str(timeout)}
    process = subprocess.run(
        [sys.executable, "-m", "tests.gpu.faulty_run", options],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    ended = time.monotonic()
    printed = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
    struck = [line["struck"] for line in printed if "struck" in line]
    assert bool(struck) == bool(fault), process.stderr[-3000:]
    return process, ended - struck[0] if struck else None


def result(run_dir):
    return json.loads((run_dir / "result.json").read_text())


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """The hash of the weights of a run without a fault."""
    run = tmp_path_factory.mktemp("undisturbed") / "run"
    process, _ = train(run)
    assert process.returncode == 0, process.stderr[-3000:]
    assert result(run)["steps"] == NUM_STEPS
    return result(run)["weights_sha256"]


def check(run, process, seconds, device, words, weights):
    """The error names the device, in time; the run resumes to the same weights."""
    assert process.returncode == 1, process.stderr[-3000:]
    assert f"GPU:{device} {words}" in process.stderr
    assert seconds < LIMIT
    assert result(run)["status"] == "failed"
    assert f"GPU:{device} {words}" in result(run)["error"]
    again, _ = train(run)
    assert again.returncode == 0, again.stderr[-3000:]
    assert "skipped the checkpoint" not in again.stderr
    assert result(run)["weights_sha256"] == weights


MEMORY, STOPPED = "is out of memory", "has stopped"


@pytest.mark.parametrize(("device", "step"), [(1, 6), (0, 9)])
def test_a_gpu_out_of_memory_is_named_and_the_run_resumes(tmp_path, weights, device, step):
    run = tmp_path / "run"
    process, seconds = train(run, fault="memory", device=device, step=step)
    check(run, process, seconds, device, MEMORY, weights)
    assert "--batch-size" in process.stderr
    assert "--shards" in process.stderr
    assert "did not fit" in process.stderr


@pytest.mark.parametrize(("device", "step"), [(1, 6), (0, 3)])
def test_a_stopped_gpu_is_named_and_the_run_resumes(tmp_path, weights, device, step):
    run = tmp_path / "run"
    process, seconds = train(run, timeout=3, fault="stop", device=device, step=step)
    check(run, process, seconds, device, STOPPED, weights)
    assert "nvidia-smi" in process.stderr
    assert "--devices" in process.stderr


def note(kind, number, seconds):
    """`KERASDIST_FAULT_TIMES=file` collects the times, for the docs."""
    if "KERASDIST_FAULT_TIMES" in os.environ:
        with open(os.environ["KERASDIST_FAULT_TIMES"], "a") as file:
            file.write(f"{kind} {number} {seconds:.1f}\n")


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_a_gpu_out_of_memory_at_any_step(tmp_path, weights, number):
    chance = random.Random(number)
    device, step = chance.randrange(2), chance.randrange(1, NUM_STEPS)
    process, seconds = train(tmp_path / "run", fault="memory", device=device, step=step)
    check(tmp_path / "run", process, seconds, device, MEMORY, weights)
    note("memory", number, seconds)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(20))
def test_a_gpu_that_stops_at_any_time(tmp_path, weights, number):
    """After a step, or at any moment of the following ones. With the times that users have."""
    chance = random.Random(number)
    device, step = chance.randrange(2), chance.randrange(2, NUM_STEPS - 2)
    fault = {"fault": "stop", "device": device, "step": step}
    if number % 2:
        fault["delay"] = chance.random() * 0.05
    process, seconds = train(tmp_path / "run", **fault)
    check(tmp_path / "run", process, seconds, device, STOPPED, weights)
    note("stop", number, seconds)
