"""Processes with fake GPUs, for tests: TensorFlow takes devices only when it starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import fake_gpu

ROOT = Path(__file__).resolve().parents[2]

needs_fake_gpus = pytest.mark.skipif(
    fake_gpu.why_not() is not None, reason=fake_gpu.why_not() or "fake GPUs"
)


def environment(num_gpus, **more):
    left_out = ("KERASDIST_LOGICAL_CPUS", "TF_CONFIG", "CUDA_VISIBLE_DEVICES", fake_gpu.EXACT)
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    path = {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    return {**kept, **path, fake_gpu.NUM: str(num_gpus), **more}


def start(arguments, num_gpus, **more):
    return subprocess.Popen(
        [sys.executable, *map(str, arguments)],
        env=environment(num_gpus, **more),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


def lines(process, seconds=600):
    """The lines that a process prints. It must end without an error."""
    try:
        out, err = process.communicate(timeout=seconds)
    finally:
        process.kill()
    assert process.returncode == 0, err[-4000:]
    return out.splitlines()


def run(arguments, num_gpus, **more):
    return lines(start(arguments, num_gpus, **more))


def result(code, num_gpus, **more):
    """What a piece of code with fake GPUs prints last, as JSON."""
    begin = "from tests.gpu import fake_gpu\nfake_gpu.load()\n"
    return json.loads(run(["-c", begin + code], num_gpus, **more)[-1])
