"""`kerasdist new`: the recipe fits at once, and so does its own test."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.recipes import scaffold


@pytest.mark.parametrize("template", ["image", pytest.param("audio", marks=pytest.mark.slow)])
def test_a_newcomers_path(command, template, tmp_path):
    """new, edit, fit, evaluate, export."""
    done = command("new", "mine", "--template", template)
    assert (done.code, done.err) == (0, "")
    assert done.lines[-1] == "next: kerasdist fit mine"
    names = ["README.md", "config.py", "data.py", "model.py", "test_recipe.py"]
    assert sorted(p.name for p in Path("mine").iterdir()) == names
    assert 'serializable("mine")' in Path("mine/model.py").read_text()
    # An edit of the network, with a mistake at first.
    model = Path("mine/model.py")
    whole = model.read_text()
    model.write_text(whole.replace("        self.logits = ", "        self.logit = "))
    done = command("fit", "mine", "--epochs", 2)
    assert done.code == 2
    assert "has no attribute 'logits'" in done.err
    more = "        self.drop = keras.layers.Dropout(0.1)\n        self.logits = "
    edited = whole.replace("        self.logits = ", more)
    dropped = r"return self.logits(self.drop(\1, training=training))"
    model.write_text(re.sub(r"return self.logits\((.*)\)$", dropped, edited, flags=re.M))
    assert "self.logits(self.drop(self." in model.read_text()
    assert command("fit", "mine", "--epochs", 2, "--quiet").code == 0
    result = json.loads(Path("runs/mine/0001/result.json").read_text())
    assert result["val_accuracy"] > 0.8
    (found,) = command("evaluate", "runs/mine/0001", "--json").objects
    assert found["accuracy"] == pytest.approx(result["val_accuracy"])
    assert command("export", "runs/mine/0001", "--format", "keras", "--quiet").code == 0


@pytest.mark.slow
@pytest.mark.parametrize("template", ["image", "audio"])
def test_the_recipes_own_test_passes(template, tmp_path):
    scaffold.create(tmp_path / "mine", template)
    environment = {k: v for k, v in os.environ.items() if k != "KERASDIST_LOGICAL_CPUS"}
    argv = [sys.executable, "-m", "pytest", "-q", "mine"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_images_of_ones_own(command, tmp_path):
    command("new", "mine")
    random = np.random.default_rng(0)
    for name in ("bar", "disc", "ring"):
        (tmp_path / "images" / name).mkdir(parents=True)
        for i in range(12):
            picture = tf.constant(random.integers(0, 256, (20, 30, 3)), tf.uint8)
            tf.io.write_file(
                str(tmp_path / "images" / name / f"{i}.png"), tf.io.encode_png(picture)
            )
    done = command("fit", "mine", "--data-dir", "images", "--epochs", 1, "--quiet")
    assert (done.code, done.out) == (0, "")
    result = json.loads(Path("runs/mine/0001/result.json").read_text())
    assert result["examples_seen"] == 30  # Two of twelve are for validation.
    (tmp_path / "images" / "ring").rename(tmp_path / "images" / "hoop")
    done = command("fit", "mine", "--data-dir", "images", "--no-resume")
    assert done.code != 0
    assert "whose folder 'ring' has no file" in done.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["mine", "--template", "imag"], "Did you mean 'image'?"),
        (["9lives"], "Received the name '9lives'"),
        (["not-a-name"], "Received the name 'not-a-name'"),
        (["taken"], "'taken' already exists"),
        ([], "Expected `kerasdist new NAME`"),
        (["one", "two"], "two"),
        (["--template", "audio"], "Expected `kerasdist new NAME`"),
    ],
)
def test_wrong_names(command, argv, message):
    Path("taken").mkdir()
    done = command("new", *argv)
    assert done.code == 2
    assert message in done.err
    assert sorted(p.name for p in Path().iterdir()) == ["taken"]
