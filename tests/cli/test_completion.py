"""What a Tab offers, and the scripts in the shells that are here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kerasdist.cli import main, shells
from tests import classifier_recipe


def offered(command, *words):
    outcome = command("--complete", *words)
    assert outcome.code == 0
    assert not outcome.err
    return [line for line in outcome.lines if line]


@pytest.mark.parametrize("shell", shells.SCRIPTS)
def test_a_script_asks_kerasdist(shell):
    assert f"kerasdist {shells.COMPLETE} " in shells.SCRIPTS[shell]


def test_every_command_is_offered_and_has_options(command):
    assert offered(command, "") == [*main.COMMANDS, "--help", "--version"]
    for name in main.COMMANDS:
        assert {"--json", "--help"} <= set(offered(command, name, "x", "-"))


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["ev"], ["evaluate"]),
        (["nothing"], []),
        (["nothing", ""], []),
        (["fit", "ci"], ["cifar10"]),
        (["fit", "cifar10", "--pres"], ["--preset"]),
        (["fit", "cifar10", "--preset", ""], ["fast", "accurate", "tutorial"]),
        (["fit", "cifar10", "--preset", "a"], ["accurate"]),
        (["fit", "cifar10", "--epochs", ""], []),
        (["fit", "cifar10", "--on-nan", "s"], ["stop", "skip"]),
        (["fit", "cifar10", "--deterministic", "--js"], ["--json"]),
        (["fit", "audio", "--cell", ""], ["gru", "lstm"]),
        (["fit", "no such recipe", "--devi"], ["--devices"]),
        (["fit", "--model", "x.py:X", "--devi"], ["--devices"]),
        (["fit", "cifar10", "--devices", "a"], ["auto"]),
        (["fit", "cifar10", "--optimizer", "a"], ["adam", "adamw"]),
        (["fit", "cifar10", "--schedule", "c"], ["constant", "cosine"]),
        (["fit", "cifar10", "--save-every", "e"], ["epoch"]),
        (["fit", "cifar10", ""], []),
        (["verify", "cifar10", "--cou"], ["--counts"]),
        (["verify", "cifar10", "--run-"], []),
        (["export", "run", "--format", ""], ["keras", "saved_model", "litert", "onnx"]),
        (["evaluate", "run", "--which", "b"], ["best"]),
        (["new", "mine", "--template", ""], ["audio", "image", "table", "text"]),
        (["completion", ""], ["bash", "zsh", "fish"]),
    ],
)
def test_what_is_offered(command, words, expected):
    assert offered(command, *words) == expected


def test_runs_and_recipes_that_are_here_are_offered(command, tmp_path):
    for number in ("0001", "0002"):
        folder = tmp_path / "runs/mine" / number
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    assert offered(command, "evaluate", "runs/m") == ["runs/mine/0001", "runs/mine/0002"]
    (tmp_path / "recipes").mkdir()
    classifier_recipe.write(tmp_path / "recipes/flowers")
    assert offered(command, "fit", "rec") == ["recipes/flowers"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "The shell is missing. Expected one of bash, zsh, fish."),
        (
            ["bsh"],
            "Unknown shell 'bsh'. Expected one of bash, zsh, fish. Did you mean 'bash'?",
        ),
        (["bash", "--jsn"], "Unknown option '--jsn'. Did you mean '--json'?"),
    ],
)
def test_wrong_shells(command, argv, message):
    outcome = command("completion", *argv)
    assert outcome.code == 2
    assert message in outcome.err


IN_SHELL = {
    "bash": """
COMP_WORDS=(kerasdist fit cifar10 --preset ""); COMP_CWORD=4
_kerasdist; printf '%s\\n' "${COMPREPLY[@]}"
""",
    "zsh": """
compadd() { shift; print -l -- "$@"; }
words=(kerasdist fit cifar10 --preset ""); CURRENT=5
_kerasdist
""",
    "fish": 'complete -C "kerasdist fit cifar10 --preset "',
}


@pytest.mark.parametrize("shell", shells.SCRIPTS)
def test_a_shell_completes(shell, tmp_path):
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    binary = tmp_path / "bin" / "kerasdist"
    binary.parent.mkdir()
    binary.write_text(f'#!/bin/sh\nexec {sys.executable} -m kerasdist "$@"\n')
    binary.chmod(0o755)
    place = {"PATH": f"{binary.parent}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    place["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
    source = (
        "kerasdist completion fish | source"
        if shell == "fish"
        else (f'eval "$(kerasdist completion {shell})"')
    )
    start = "autoload -Uz compinit && compinit -u -D" if shell == "zsh" else ""
    script = f"{start}\n{source}\n{IN_SHELL[shell]}"
    done = subprocess.run(
        [shell, "-c", script],
        env={**os.environ, **place},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert sorted(done.stdout.split()) == ["accurate", "fast", "tutorial"], done.stderr
