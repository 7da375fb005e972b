"""`kerasdist doctor --gpu` on two fake GPUs, as a person runs it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import fake_gpu

ROOT = Path(__file__).resolve().parents[2]
NOT_ON_FAKE_GPUS = ["TF32", "NCCL", "XLA", "cuDNN", "memory limit"]


@pytest.mark.skipif(fake_gpu.why_not() is not None, reason=str(fake_gpu.why_not()))
@pytest.mark.slow
def test_every_check_runs_on_fake_gpus(tmp_path):
    # Python imports it when it starts: the processes of the checks have fake GPUs, too.
    (tmp_path / "sitecustomize.py").write_text("from tests.gpu import fake_gpu\nfake_gpu.load()\n")
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
        "CUDA_VISIBLE_DEVICES": "",
        fake_gpu.NUM: "2",
    }
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "kerasdist",
            "doctor",
            "--gpu",
            "--json",
            "--output",
            "report.jsonl",
        ],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = {item["name"]: item for item in map(json.loads, done.stdout.splitlines())}
    assert [name for name, item in found.items() if not item["ok"]] == NOT_ON_FAKE_GPUS
    for name in NOT_ON_FAKE_GPUS:
        assert found[name]["text"].startswith("not available here: ")
    assert "GPU:1 FAKE" in found["GPUs"]["text"]
    assert len(found["copies of 64 MB"]["values"]["gigabytes_per_second"]) == 6
    assert found["determinism"]["text"].startswith("the same bits: ")
    assert len(found["time per step"]["values"]["seconds"]) == 4
    assert (tmp_path / "report.jsonl").read_text() == done.stdout
