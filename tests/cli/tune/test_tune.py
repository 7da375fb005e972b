"""`kerasdist tune`, as a person runs it: killed, started twice, and again when it is finished."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.cli.conftest import start

pytest.importorskip("optuna")
SEARCH = ["--search", "learning_rate=1e-3:0.2:log", "--search", "units=2,5"]


def runs(folder="tune/tiny"):
    return sorted(path for path in Path(folder).iterdir() if path.name.isdigit())


def result(run):
    return json.loads((run / "result.json").read_text())


def settings(run):
    config = json.loads((run / "config.json").read_text())
    return config["settings"]["learning_rate"], config["settings"]["units"]


def test_each_trial_is_a_run_and_the_best_is_shown(tiny, command):
    asked = ["tune", "tiny", "--trials", 2, "--epochs", 1, *SEARCH]
    done = command(*asked, "--jobs", 2)
    assert (done.code, done.err) == (0, "")
    assert [run.name for run in runs()] == ["0001", "0002"]
    for run in runs():
        assert result(run)["status"] == "finished"
        assert (run / "report.html").is_file()
    best = min(runs(), key=lambda run: result(run)["val_loss"])
    rate, units = settings(best)
    assert f"best    trial {int(best.name)}: val_loss {result(best)['val_loss']:.5g}" in done.out
    line = f"kerasdist fit tiny --epochs 1 --learning-rate {rate} --units {units}"
    assert f"train   {line}" in done.out
    page = Path("tune/tiny/report.html").read_text()
    assert line in page
    assert 'class="badge finished"' in page
    again = command(*asked)
    assert "the study is finished: it has its 2 trials" in again.out
    assert len(runs()) == 2
    told = command(*asked, "--json").objects[-1]
    assert (told["event"], told["best"]["number"]) == ("end", int(best.name))
    other = command(*asked, "--epochs", 2)
    assert other.code == 2
    assert "is another one: epochs was 1 and is 2" in other.err


@pytest.mark.slow
def test_trials_that_diverge_and_recipes_that_fail(tiny, command):
    done = command("tune", "tiny", "--trials", 1, "--search", "learning_rate=1e20:1e30:log")
    assert done.code == 0
    assert "trial 1/1 diverged" in done.out
    assert "best    none: no trial has finished" in done.out
    (tiny / "data.py").write_text("def build_data(config, split):\n    return {'x': 3}\n")
    failed = command("tune", "tiny", "--name", "other", *SEARCH)
    assert failed.code == 2
    assert "Trial 1 failed: " in failed.err


SLOW_EPOCHS = """
import time

import keras


class Slow(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        time.sleep(1.5)


def build_callbacks(config):
    return Slow()
"""
ASKED = ["tune", "tiny", "--trials", 4, "--epochs", 6, "--deterministic", *SEARCH]


def wait_for(condition, seconds=300):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it took too long"
        time.sleep(0.05)


def is_at_epoch(run, epoch):
    path = Path(run) / "metrics.jsonl"
    return path.is_file() and f'"epoch": {epoch}' in path.read_text()


@pytest.fixture
def undisturbed(tiny, tmp_path):
    """The results of a study that nothing disturbs."""
    folder = tmp_path / "undisturbed"
    folder.mkdir()
    (tiny / "callbacks.py").write_text(SLOW_EPOCHS)
    (folder / "tiny").symlink_to(tiny)
    with start(*ASKED, cwd=folder) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    return folder / "tune/tiny", out.splitlines()[-2:]


@pytest.mark.slow
def test_a_killed_study_ends_as_an_undisturbed_one(undisturbed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for at, epoch in (("0001", 2), ("0003", 3)):
        with start(*ASKED, cwd=tmp_path) as process:
            wait_for(lambda at=at, epoch=epoch: is_at_epoch(f"tune/tiny/{at}", epoch))
            os.kill(process.pid, signal.SIGKILL)
            process.communicate()
    with start(*ASKED, cwd=tmp_path) as process:
        out, err = process.communicate()
    assert process.returncode == 0, err
    expected, last_lines = undisturbed
    assert len(runs()) == len(runs(expected)) == 4
    for run in runs():
        other = expected / run.name
        assert settings(run) == settings(other)
        assert result(run)["epochs"] == result(other)["epochs"]
        assert result(run)["weights_sha256"] == result(other)["weights_sha256"]
    assert out.splitlines()[-2:] == last_lines
    assert "resume" not in err
    logs = "".join(path.read_text() for path in Path("tune/tiny/logs").iterdir())
    assert logs.count("continuing after step") == 2


@pytest.mark.slow
def test_ctrl_c_saves_the_trial_and_the_same_command_continues(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tiny / "callbacks.py").write_text(SLOW_EPOCHS)
    asked = [*ASKED, "--trials", 1]
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        epoch = 1 if number == signal.SIGINT else 3
        with start(*asked, cwd=tmp_path) as process:
            wait_for(lambda epoch=epoch: is_at_epoch("tune/tiny/0001", epoch))
            process.send_signal(number)
            process.communicate()
        assert process.returncode == code
        assert result(Path("tune/tiny/0001"))["status"] == "interrupted"
    with start(*asked, cwd=tmp_path) as process:
        out, _ = process.communicate()
    assert process.returncode == 0
    assert "trial 1/1 finished" in out
    assert result(Path("tune/tiny/0001"))["epochs"] == 6


@pytest.mark.slow
def test_two_processes_share_a_study(undisturbed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    processes = [start(*ASKED, cwd=tmp_path) for _ in range(2)]
    outs = [process.communicate() for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outs
    assert len(runs()) == 4
    finished = [line for out, _ in outs for line in out.splitlines() if " finished, " in line]
    numbers = [line.split()[1] for line in finished]
    assert len(set(numbers)) == len(numbers)
    expected, _ = undisturbed
    # The first trials do not depend on each other.
    assert [settings(run) for run in runs()] == [settings(run) for run in runs(expected)]
    for run in runs():
        if result(run)["epochs"] == result(expected / run.name)["epochs"]:
            digests = {result(r)["weights_sha256"] for r in (run, expected / run.name)}
            assert len(digests) == 1
