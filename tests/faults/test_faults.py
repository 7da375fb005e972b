"""Real processes, real signals: every run ends with the weights of the undisturbed one."""

import json
import signal
import subprocess
import sys

import pytest

from tests.faults import harness


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return harness.finish(tmp_path_factory.mktemp("undisturbed") / "run")


@pytest.mark.parametrize("index", range(4))
def test_runs_killed_three_times_end_with_the_undisturbed_weights(index, tmp_path, undisturbed):
    """After a step, while saving and at an epoch's end; resumed on 1, 2 or 4 devices."""
    assert harness.check(tmp_path, undisturbed, index, signal.SIGKILL, strikes=3)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_saves_and_says_how_to_go_on(number, code, tmp_path, undisturbed):
    import random

    run = tmp_path / "run"
    exit_code, lines = harness.strike(run, "step", number, random.Random(5))
    text = "".join(lines)
    assert exit_code == code, text
    assert "the same command continues" in text
    assert json.loads((run / "result.json").read_text())["status"] == "interrupted"
    steps = [int(p.name.split("-")[1]) for p in (run / "checkpoints").glob("step-*")]
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    # No step that was logged is lost.
    assert max(steps) >= max(line["step"] for line in logged)
    assert harness.finish(run)["weights_sha256"] == undisturbed["weights_sha256"]
    assert harness.seen_once(run)


def test_two_processes_do_not_share_a_run(tmp_path):
    run = tmp_path / "run"
    first = harness.start(run, "--pause", "0.2")
    for line in first.stdout:
        if "step" in line:
            break
    second = harness.start(run)
    output, _ = second.communicate()
    first.kill()
    first.communicate()
    assert second.returncode == 2, output
    assert str(first.pid) in output


def test_another_configuration_is_refused_with_the_differences(tmp_path):
    run = tmp_path / "run"
    harness.finish(run, "--epochs", "1")
    other = harness.start(run, "--batch-size", "8", "--seed", "3", "--epochs", "2")
    output, _ = other.communicate()
    assert other.returncode == 2
    assert "batch_size was 16 and is 8" in output
    assert "seed was 0 and is 3" in output
    more = harness.finish(run, "--epochs", "2")  # more epochs go on from the end
    assert more["epochs"] == 2
    assert more["examples_seen"] == 2 * 331


def test_the_harness_is_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.harness", "--help"], capture_output=True, text=True
    )
    assert "--runs" in done.stdout
