"""`kerasdist fit FOLDER --freeze`, killed in both stages, ends with the bits of a whole run."""

import json
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

import kerasdist
from tests.devices.real_workers import environment

OPTIONS = (
    *("--backbone", "mobilenet_v3_small", "--image-size", "32", "--weights", "mine.weights.h5"),
    *("--freeze", "2", "--epochs", "4", "--batch-size", "8", "--deterministic"),
    *("--save-every", "1"),
)


def start(folder, name):
    command = [sys.executable, "-m", "kerasdist", "fit", "pets", *OPTIONS, "--run-dir", name]
    return subprocess.Popen(
        command, cwd=folder, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )


def last_step(run):
    return max((int(p.name.split("-")[1]) for p in run.glob("checkpoints/step-*")), default=0)


@pytest.mark.slow
def test_a_fine_tuning_killed_in_both_stages(tmp_path):
    random = np.random.default_rng(0)
    for colour in ("red", "green"):
        (tmp_path / "pets" / colour).mkdir(parents=True)
        for i in range(12):
            image = random.integers(0, 256, (32, 32, 3)).astype("uint8")
            keras.utils.save_img(tmp_path / "pets" / colour / f"{i}.png", image)
    kerasdist.backbone("mobilenet_v3_small", (32, 32)).save_weights(tmp_path / "mine.weights.h5")
    undisturbed = start(tmp_path, "undisturbed")
    assert undisturbed.wait() == 0, undisturbed.stderr.read()
    num_steps = json.loads((tmp_path / "undisturbed" / "result.json").read_text())["steps"]
    run = tmp_path / "killed"
    for step in (1, num_steps // 2, num_steps // 2 + 2):
        process = start(tmp_path, "killed")
        while process.poll() is None and last_step(run) < step:
            time.sleep(0.02)
        process.kill()
        process.wait()
    (tmp_path / "mine.weights.h5").unlink()  # A run that resumes does not need it.
    last = start(tmp_path, "killed")
    assert last.wait() == 0, last.stderr.read()
    results = [
        json.loads((tmp_path / name / "result.json").read_text())
        for name in ("undisturbed", "killed")
    ]
    assert results[0]["weights_sha256"] == results[1]["weights_sha256"]
    assert results[0]["steps"] == results[1]["steps"]
    final = kerasdist.load(run, "final").get_weights()
    for a, b in zip(final, kerasdist.load(run, "last").get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
