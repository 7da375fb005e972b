"""A recipe whose code was edited after its run: what `fit` says, and what it compares."""

import json
import os
from pathlib import Path

import pytest

CHANGED = (
    "run runs/tiny/0001 is finished, but the code of the recipe was changed since: --no-resume "
    "trains it in a new run"
)
CONFIG = Path("runs/tiny/0001/config.json")


def edit(file):
    file.write_text(file.read_text() + "\nEDITED = True\n")


@pytest.mark.parametrize("name", ["config.py", "data.py", "model.py", "layers.py", "parts/one.py"])
def test_a_finished_run_of_edited_code_says_so(command, tiny, name):
    file = tiny / name
    file.parent.mkdir(exist_ok=True)
    file.touch()
    assert command("fit", "tiny", "--epochs", 1).code == 0
    edit(file)
    done = command("fit", "tiny", "--epochs", 1)
    assert (done.code, done.lines) == (0, [CHANGED])
    assert command("fit", "tiny", "--epochs", 1, "--json").objects == [
        {"event": "finished", "run": "runs/tiny/0001", "edited": True}
    ]
    assert not Path("runs/tiny/0002").exists()
    assert command("fit", "tiny", "--epochs", 1, "--no-resume").code == 0
    again = command("fit", "tiny", "--epochs", 1)
    assert "run runs/tiny/0002 is finished; --no-resume starts a new run" in again.out


def test_what_does_not_change_the_code(command, tiny, tmp_path):
    command("fit", "tiny", "--epochs", 1)
    (tiny / "test_tiny.py").write_text("def test(): pass")
    (tiny / "README.md").write_text("# Tiny")
    os.utime(tiny / "model.py", (0, 0))
    assert "with more --epochs continues this one" in command("fit", "tiny", "--epochs", 1).out


def test_a_run_of_before_says_nothing(command, tiny):
    command("fit", "tiny", "--epochs", 1)
    config = json.loads(CONFIG.read_text())
    del config["code_sha256"]
    CONFIG.write_text(json.dumps(config))
    edit(tiny / "model.py")
    assert "changed" not in command("fit", "tiny", "--epochs", 1).out


def test_a_named_folder_is_finished_and_another_one_is_suggested(command, tiny):
    command("fit", "tiny", "--epochs", 1, "--run-dir", "mine")
    command_ = ("fit", "tiny", "--epochs", 1, "--run-dir", "mine")
    assert "another --run-dir starts a new run" in command(*command_).out
    edit(tiny / "data.py")
    done = command(*command_)
    assert done.out.endswith("changed since: another --run-dir trains it in a new run\n")


def test_an_unfinished_run_continues_with_edited_code_and_knows_it(command, tiny):
    command("fit", "tiny", "--epochs", 1)
    Path("runs/tiny/0001/result.json").unlink()  # As after a kill.
    edit(tiny / "model.py")
    assert command("fit", "tiny", "--epochs", 1).code == 0
    assert not Path("runs/tiny/0002").exists()
    longer = ("fit", "tiny", "--epochs", 2, "--run-dir", "runs/tiny/0001")
    assert command(*longer).code == 0
    assert "changed" not in command(*longer).out
    edit(tiny / "model.py")
    assert "changed" in command(*longer).out


def test_a_class_that_was_edited_is_named_as_code(command, bare, tmp_path):
    assert command("fit", *bare, "--steps", 1).code == 0
    assert "--no-resume starts a new run" in command("fit", *bare, "--steps", 1).out
    edit(tmp_path / "bare.py")
    assert "but the code was changed since" in command("fit", *bare, "--steps", 1).out


def test_the_hash_is_not_a_setting(command, tiny):
    command("fit", "tiny", "--epochs", 1)
    edit(tiny / "model.py")
    command("fit", "tiny", "--epochs", 1, "--no-resume")
    assert "code_sha256" not in command("runs", "runs/tiny/0001", "runs/tiny/0002").out
    digest = json.loads(CONFIG.read_text())["code_sha256"]
    assert digest not in Path("runs/tiny/0001/report.html").read_text()


def test_a_recipe_of_kerasdist_has_no_hash(command):
    sizes = ("--source", "synthetic", "--num-train", 8, "--num-validation", 8)
    done = command("fit", "cifar10", *sizes, "--batch-size", 8, "--steps", 1)
    if done.code != 0:
        pytest.fail(done.err)
    assert "code_sha256" not in json.loads(Path("runs/cifar10/0001/config.json").read_text())


def test_evaluate_says_that_the_code_was_changed(command, tiny):
    """Another loss gave another number, without a word."""
    assert command("fit", "tiny", "--epochs", 1, "--quiet").code == 0
    done = command("evaluate", "runs/tiny/0001")
    assert (done.code, done.err) == (0, "")
    model = tiny / "model.py"
    model.write_text(model.read_text().replace('loss="mse"', 'loss="mae"'))
    changed = command("evaluate", "runs/tiny/0001")
    assert changed.code == 0
    assert changed.err.startswith("careful: the code was changed since the run was trained")
    assert changed.out != done.out
