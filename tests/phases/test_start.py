"""The first sign of life of every command that loads TensorFlow comes within 0.3 seconds."""

import json
import os
import pty
import resource
import subprocess
import sys

import pytest

from tests.cli.conftest import environment

MOST_SECONDS = 0.3
COMMANDS = {
    "fit": ["fit", "cifar10", "--source", "synthetic"],
    "run": ["run", "script.py"],
    "evaluate": ["evaluate", "run"],
    "predict": ["predict", "run", "run"],
    "export": ["export", "run", "--format", "keras"],
    "verify": ["verify", "cifar10", "--source", "synthetic"],
    "bench": ["bench", "cifar10", "--source", "synthetic"],
    "devices": ["devices"],
    "doctor": ["doctor"],
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "script.py").write_text("")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text('{"kerasdist": "1"}')
    (tmp_path / "run" / "final.keras").touch()
    return tmp_path


def first_sign(arguments, folder, *, is_terminal):
    """`(seconds, text)` of the first thing that a command writes to standard error.

    The seconds are the processor's: other tests have the machine to themselves meanwhile.
    """
    ours, theirs = pty.openpty() if is_terminal else os.pipe()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    process = subprocess.Popen(
        [sys.executable, "-m", "kerasdist", *arguments],
        cwd=folder,
        env={**environment(), "TERM": "xterm"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
    )
    os.close(theirs)
    try:
        text = os.read(ours, 4096).decode()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, text


@pytest.mark.parametrize("is_terminal", [True, False], ids=["terminal", "log"])
@pytest.mark.parametrize("name", COMMANDS)
def test_a_sign_of_life_comes_at_once(folder, name, is_terminal):
    seconds = []
    for _ in range(5):
        took, text = first_sign(COMMANDS[name], folder, is_terminal=is_terminal)
        assert "starting TensorFlow" in text
        assert is_terminal or text == "kerasdist: starting TensorFlow ...\n"
        seconds.append(took)
        if took < MOST_SECONDS:
            return
    pytest.fail(f"took {seconds} seconds")


def test_a_command_that_gives_json_writes_nothing_else(folder):
    done = subprocess.run(
        [sys.executable, "-m", "kerasdist", "devices", "--json"],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert all(json.loads(line) for line in done.stdout.splitlines())


def test_a_usage_error_is_all_that_a_log_shows(folder):
    _, text = first_sign(["fit", "cifar10", "--epoch", "1"], folder, is_terminal=False)
    assert text.startswith("kerasdist: Unknown option '--epoch'.")
