"""`kerasdist new`: the recipe fits at once, and so does its own test."""

import dataclasses
import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.recipes import places, scaffold
from kerasdist.recipes.own_data.kinds import look
from kerasdist.recipes.recipe import config_class
from tests.own_data import write_images, write_sounds
from tests.own_tables import HEADER, passengers, write_table, write_texts


@pytest.mark.parametrize("template", ["image", pytest.param("audio", marks=pytest.mark.slow)])
def test_a_newcomers_path(command, template, tmp_path):
    """new, edit, fit, evaluate, export."""
    done = command("new", "mine", "--template", template)
    assert (done.code, done.err) == (0, "")
    assert done.lines[-1] == "next: kerasdist fit mine"
    names = ["README.md", "config.py", "data.py", "model.py", "test_mine.py"]
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
@pytest.mark.parametrize("template", ["image", "audio", "table", "text"])
def test_the_recipes_own_test_passes(template, tmp_path):
    scaffold.create(tmp_path / "mine", template)
    environment = {k: v for k, v in os.environ.items() if k != "KERASDIST_LOGICAL_CPUS"}
    argv = [sys.executable, "-m", "pytest", "-q", "mine"]
    done = subprocess.run(argv, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def houses(path):
    random = np.random.default_rng(0)
    rooms, areas = random.integers(1, 7, 120), random.uniform(30, 200, 120)
    prices = 3000 * areas + 20_000 * rooms + random.normal(0, 9000, 120)
    rows = [(f"{a:.1f}", r, f"{p:.0f}") for a, r, p in zip(areas, rooms, prices, strict=True)]
    return write_table(path / "houses.csv", ("area", "rooms", "price"), rows)


WRITERS = {
    "images": lambda path: write_images(path / "photos", 6),
    "sounds": lambda path: write_sounds(path / "tones", 9),
    "classes of a table": lambda path: write_table(path / "t.csv", HEADER, passengers(90)),
    "numbers of a table": houses,
    "texts": lambda path: write_texts(path / "letters", 12),
}
TARGETS = {"classes of a table": "Survived", "numbers of a table": "price"}


QUICK = "numbers of a table"
KINDS = [kind if kind == QUICK else pytest.param(kind, marks=pytest.mark.slow) for kind in WRITERS]


@pytest.mark.parametrize("kind", KINDS)
def test_the_tests_written_for_data_pass(kind, tmp_path):
    """On little data, which no network learns well: they must not ask for more than progress."""
    data = WRITERS[kind](tmp_path)
    found = look(data).recipe
    given = {"target": TARGETS[kind]} if kind in TARGETS else {}
    scaffold.create(tmp_path / "mine", found, data, given)
    written = runpy.run_path(str(tmp_path / "mine" / "test_mine.py"))
    tests = [function for name, function in written.items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()


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


def test_the_readme_says_what_it_trains_on(command, photos, tmp_path):
    command("new", "mine", "--from", "photos")
    text = Path("mine/README.md").read_text()
    assert f"kerasdist fit mine                      # with {photos}" in text
    assert "examples" not in text
    assert "pip install pytest && python -m pytest mine" in text
    # The examples of tables and texts are in a file of their own, which is still imported.
    table = houses(tmp_path)
    for name, options in (("shop", ["--from", table, "--target", "price"]), ("bare", [])):
        command("new", name, "--template", "table", *options)
    text = Path("shop/README.md").read_text()
    assert f"kerasdist fit shop                      # with {table}" in text
    assert "PATH      # with another .csv, .tsv or .parquet file" in text
    assert "made" not in text
    text = Path("bare/README.md").read_text()
    assert "kerasdist fit bare                      # with examples that example.py makes" in text


def test_corrupt_files_are_left_out(command, photos):
    (photos / "disc" / "2.png").write_bytes(b"not a picture")
    done = command("new", "mine", "--from", "photos")
    assert (done.code, "leave them out with `--skip-bad`" in done.err) == (2, True)
    assert not Path("mine").exists()
    done = command("new", "mine", "--from", "photos", "--skip-bad")
    assert (done.code, done.err) == (0, "")
    assert kerasdist.load_recipe("mine").config.skipped == ("disc/2.png",)


def test_a_table_without_a_header(command, tmp_path):
    (tmp_path / "t.csv").write_text("".join(f"{'ab'[i % 2]},{i % 7},{i}.5\n" for i in range(40)))
    options = ("--from", "t.csv", "--target", "column_1")
    done = command("new", "mine", *options)
    assert (done.code, "`--no-header`" in done.err) == (2, True)
    assert command("new", "mine", *options, "--no-header").code == 0
    assert kerasdist.load_recipe("mine").config.class_names == ("a", "b")


def test_a_header_of_numbers_is_said(command, tmp_path):
    lines = [f"{'xy'[i % 2]},{i % 7},{i}.5" for i in range(40)]
    (tmp_path / "u.csv").write_text("\n".join(["kind,9,5", *lines]))
    options = ("--from", "u.csv", "--target", "kind")
    assert command("new", "mine", *options, "--header").code == 0
    assert kerasdist.load_recipe("mine").config.header is True


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["mine", "--skip-bad"], "`--skip-bad` without `--from`"),
        (["mine", "--no-header"], "`--no-header` without `--from`"),
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
