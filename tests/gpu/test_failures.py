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


@pytest.mark.parametrize(("device", "step"), [(1, 6), pytest.param(0, 9, marks=pytest.mark.slow)])
def test_a_gpu_out_of_memory_is_named_and_the_run_resumes(tmp_path, weights, device, step):
    run = tmp_path / "run"
    process, seconds = train(run, fault="memory", device=device, step=step)
    check(run, process, seconds, device, MEMORY, weights)
    assert "--batch-size" in process.stderr
    assert "--shards" in process.stderr
    assert "did not fit" in process.stderr


@pytest.mark.parametrize(("device", "step"), [(1, 6), pytest.param(0, 3, marks=pytest.mark.slow)])
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


def run_python(code, *arguments, **more):
    """Runs code in a process of its own, after the fake GPUs were loaded."""
    begin = "from tests.gpu import fake_gpu\nfake_gpu.load()\n"
    return subprocess.run(
        [sys.executable, "-c", begin + code, *map(str, arguments)],
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


# Each call needs more memory than GPU:1 has; the last one does not.
TOO_LARGE = """
import keras, numpy as np, kerasdist
from kerasdist.errors import RunFailedError
from tests.gpu.faulty_run import build

def try_to(what, *args, **kwargs):
    try:
        getattr(kerasdist, what)(*args, batch_size=40_000, **kwargs)
    except RunFailedError as error:
        print(what, str(error)[:22])

x = np.zeros((40_000, 64), "float32")
y = np.zeros((40_000, 10), "float32")
model = build()
before = [w.copy() for w in model.get_weights()]
try_to("predict", model, x)
try_to("evaluate", model, (x, y))
try_to("fit", model, (x, y), progress=False)
for old, new in zip(before, model.get_weights(), strict=True):
    np.testing.assert_array_equal(old, new)
kerasdist.fit(model, (x[:64], y[:64]), batch_size=32, progress=False)
print("fits", int(model.optimizer.iterations))
"""


@pytest.mark.slow
@pytest.mark.parametrize("gpus", [1, 2])
def test_a_caller_can_catch_it_and_train_with_smaller_batches(gpus):
    done = run_python(
        TOO_LARGE,
        KERASDIST_FAKE_GPUS=str(gpus),
        KERASDIST_FAKE_GPU_MB="2000",
        **{f"KERASDIST_FAKE_GPU_MB_{gpus - 1}": "60"},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    name = f"GPU:{gpus - 1} is out of memory"
    assert done.stdout.splitlines() == [
        f"predict {name}",
        f"evaluate {name}",
        f"fit {name}",
        "fits 2",
    ]


@pytest.mark.slow
def test_a_model_that_does_not_fit_at_all_is_told_on_the_command_line(tmp_path):
    """Before the first step, when the state is copied to the second GPU."""
    code = (
        "import sys\nfrom kerasdist.cli.main import main\n"
        "sys.exit(main(['fit', 'cifar10', '--source', 'synthetic', '--num-train', '128', "
        "'--quiet', '--run-dir', sys.argv[1]]))"
    )
    run = tmp_path / "run"
    done = run_python(code, run, KERASDIST_FAKE_GPU_MB="2000", KERASDIST_FAKE_GPU_MB_1="4")
    assert done.returncode == 1, done.stderr[-3000:]
    lines = [x for x in done.stderr.splitlines() if " ..." not in x]  # Without the phases.
    (line,) = [x for x in lines if x.startswith("kerasdist: ")]
    assert line.startswith("kerasdist: GPU:1 is out of memory")
    assert result(run)["status"] == "failed"
