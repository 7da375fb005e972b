"""`kerasdist new`: the recipe fits at once, and so does its own test."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.recipes import places, scaffold
from kerasdist.recipes.recipe import config_class
from tests.own_data import write_images


@pytest.mark.parametrize("template", ["image", pytest.param("audio", marks=pytest.mark.slow)])
def test_a_newcomers_path(command, template, tmp_path):
    """new, edit, fit, evaluate, export."""
    done = command("new", "mine", "--template", template)
    assert (done.code, done.err) == (0, "")
    assert done.lines[-1] == "next: kerasdist fit mine"
    names = ["README.md", "config.py", "data.py", "model.py", "test_recipe.py"]
    assert sorted(p.name for p in Path("mine").iterdir()) == names
    # An edit of the network, with a mistake at first.
    model = Path("mine/model.py")
    edited = model.read_text().replace("layers.ReLU()", "layers.Actvation('gelu')")
    model.write_text(edited)
    done = command("fit", "mine", "--epochs", 3)
    assert done.code == 1
    assert "has no attribute 'Actvation'" in done.err
    model.write_text(edited.replace("Actvation", "Activation"))
    assert command("fit", "mine", "--epochs", 3, "--quiet").code == 0
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
    done = command("evaluate", "runs/mine/0001")
    assert done.code == 2
    assert (
        "has the class 'hoop'. Expected folders with the names of the model's classes" in done.err
    )


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_images(tmp_path / "photos", 5)


def test_a_recipe_is_written_for_data(command, photos):
    done = command("new", "mine", "--from", "photos")
    assert (done.code, done.err) == (0, "")
    config = kerasdist.load_recipe("mine").config
    assert config.data_dir == str(photos)
    assert config.class_names == ("bar", "disc", "ring")
    # What was chosen for the data can be seen, and edited.
    text = Path("mine/config.py").read_text()
    assert f'default="{photos}"' in text
    assert f"default={config.epochs}, " in text
    assert kerasdist.load_recipe("mine", epochs=3).config.epochs == 3


def test_a_template_of_another_kind_is_refused(command, photos):
    done = command("new", "mine", "--from", "photos", "--template", "audio")
    assert done.code == 2
    assert "Received `--template audio` with `--from photos`, which is for the template image" in (
        done.err
    )


def test_the_settings_of_templates_can_be_filled_in():
    """`new --from` replaces their defaults, which must be where it looks."""
    for path in places.templates().values():
        text = (path / "config.py").read_text()
        fields = dataclasses.fields(config_class(path))
        for name in ["data_dir", *(f.name for f in fields if f.metadata.get("from_data"))]:
            assert re.search(rf"\n    {name}: [^=]*= field\(\s*default=None\b", text), (path, name)


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
        (["mine", "--from", "nowhere"], "Received `--from nowhere`, which does not exist"),
        (["mine", "--from", "taken"], "The folder 'taken' is empty"),
    ],
)
def test_wrong_names(command, argv, message):
    Path("taken").mkdir()
    done = command("new", *argv)
    assert done.code == 2
    assert message in done.err
    assert sorted(p.name for p in Path().iterdir()) == ["taken"]


def test_a_target_needs_a_table(command, tmp_path):
    done = command("new", "mine", "--target", "price")
    assert (done.code, "`--target price` without `--from`" in done.err) == (2, True)
    write_images(tmp_path / "photos", 2)
    done = command("new", "mine", "--from", "photos", "--target", "price")
    assert (done.code, "the setting 'target' for the recipe" in done.err) == (2, True)
    (tmp_path / "t.csv").write_text("a,b\n1.5,2.5\n2.5,3.5\n3.5,1.5\n")
    done = command("new", "mine", "--from", "t.csv")
    assert (done.code, "`--target b`" in done.err) == (2, True)
