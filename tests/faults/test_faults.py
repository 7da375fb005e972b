"""Real processes, real signals: every run ends as the undisturbed one."""

import dataclasses
import random
import signal
import subprocess
import sys

import pytest

from tests.faults import evidence, harness
from tests.faults.strikes import CHECKPOINT, EDGE, KERASDIST, STEP, Aim, Place, Training

slow = pytest.mark.slow
# A dozen kills. The fractions are of what is left to do, the delays seconds.
KILLS = [
    pytest.param((1,), [Aim(STEP, 0.1), Aim(CHECKPOINT, 0.1), Aim(EDGE, 0.0)], marks=slow),
    ((1,), [Aim(CHECKPOINT, 0.2, 0.001), Aim(EDGE, 0.3, 0.02), Aim(STEP, 0.4)]),
    pytest.param(
        (1, 2), [Aim(EDGE, 0.1, 0.03), Aim(STEP, 0.2, 0.01), Aim(CHECKPOINT, 0.3)], marks=slow
    ),
    ((1, 2, 4), [Aim(CHECKPOINT, 0.3), Aim(STEP, 0.1), Aim(EDGE, 0.5)]),
]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return harness.run_undisturbed(Place(tmp_path_factory.mktemp("undisturbed")))


@pytest.mark.parametrize(("devices", "aims"), KILLS)
def test_a_run_killed_three_times_ends_as_the_undisturbed_one(devices, aims, tmp_path, undisturbed):
    """After a step, while saving and at an epoch's end; each process on one of `devices`."""
    subject = dataclasses.replace(KERASDIST, devices=devices)
    chance = random.Random(2)
    outcome = harness.disturb(Place(tmp_path), undisturbed, aims, chance=chance, subject=subject)
    assert not outcome.problems
    assert len(outcome.kills) == len(aims)


@pytest.mark.parametrize(
    ("number", "aims"),
    [
        (signal.SIGTERM, [Aim(STEP, 0.1), Aim(EDGE, 0.3, 0.01)]),
        pytest.param(signal.SIGINT, [Aim(CHECKPOINT, 0.3)], marks=slow),
    ],
)
def test_a_signal_saves_and_says_how_to_go_on(number, aims, tmp_path, undisturbed):
    """Exit 143 or 130, status "interrupted", and no step is done again; `disturb` checks it."""
    subject = dataclasses.replace(KERASDIST, devices=(1,))
    outcome = harness.disturb(Place(tmp_path), undisturbed, aims, number, subject=subject)
    assert not outcome.problems
    assert [kill.code for kill in outcome.kills] == [128 + number] * len(aims)
    assert outcome.num_again == 0


def test_two_processes_do_not_share_a_run(tmp_path):
    place = Place(tmp_path)
    first = Training(KERASDIST, place)
    assert first.wait_for(lambda: bool(first.steps))
    first.process.send_signal(signal.SIGSTOP)  # It must not end before the other has begun.
    second = Training(KERASDIST, place)
    code = second.end()
    first.process.kill()
    first.end()
    assert code == 2, second.text
    assert str(first.pid) in second.text


def test_another_configuration_is_refused_with_the_differences(tmp_path):
    place = Place(tmp_path)
    harness.finish(KERASDIST, place, "--epochs", "1")
    other = Training(KERASDIST, place, "--batch-size", "8", "--seed", "3", "--epochs", "2")
    assert other.end() == 2
    assert "batch_size was 16 and is 8" in other.text
    assert "seed was 0 and is 3" in other.text
    harness.finish(KERASDIST, place, "--epochs", "2")  # more epochs go on from the end
    more = evidence.result(place)
    assert more["epochs"] == 2
    assert more["examples_seen"] == 2 * 331


def test_the_harness_is_a_command():
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.harness", "--help"], capture_output=True, text=True
    )
    assert "--runs" in done.stdout
