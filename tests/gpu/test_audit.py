"""The audit finds nothing that kerasdist itself does, and finds what it should."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.gpu import fake_gpu

ROOT = Path(__file__).parents[2]
QUICK = ("mlp", "mlp_four_shards", "unet_mean_iou", "optimizer_adam_amsgrad")
# A process keeps the graphs of its models, so each takes a part of the zoo.
NUM_PARTS = 8

pytestmark = pytest.mark.skipif(fake_gpu.why_not() is not None, reason=str(fake_gpu.why_not()))


def audit(tmp_path, *arguments):
    """What the audit writes. Another process runs it: fake GPUs would stay in this one."""
    target = tmp_path / "audit.json"
    command = [sys.executable, "-m", "tests.gpu.audit", *arguments, "--json", str(target)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("KERASDIST_LOGICAL_CPUS", None)
    run = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert target.exists(), run.stdout + run.stderr
    found = json.loads(target.read_text())
    assert found["errors"] == {}
    of_kerasdist = [row for row in found["findings"] if row["owner"] not in ("Keras", "model")]
    assert of_kerasdist == []
    assert run.returncode == 0
    return found


@pytest.mark.slow
def test_the_step_has_no_operations_of_kerasdist_without_a_gpu_kernel(tmp_path):
    found = audit(tmp_path, "--models", *QUICK)
    assert len(found["runs"]) == len(QUICK) * 3
    # Keras's MeanIoU computes with int32 numbers, so the audit sees what there is to see.
    assert "MeanIoU" in {row["from"] for row in found["findings"]}
    # At most these numbers go to the host: seeds need the step, the loop needs the results.
    to_host = [row for row in found["small_copies"] if row["kind"] == "to the host"]
    assert sum(row["largest_bytes"] for row in to_host if row["owner"] == "kerasdist") < 100


@pytest.mark.slow
@pytest.mark.parametrize("part", range(NUM_PARTS))
def test_the_whole_zoo(part, tmp_path):
    from tests.gpu.zoo_of_others import ALL

    names = list(ALL)[part::NUM_PARTS]
    assert len(audit(tmp_path, "--models", *names)["runs"]) == len(names) * 3
