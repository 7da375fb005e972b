"""`kerasdist evaluate`: metrics, per class and per group, in one pass."""

import contextlib
import io
import json
import re

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.cli import main
from kerasdist.cli.commands.evaluate import print_counts
from kerasdist.evaluation import confusion
from kerasdist.recipes import extras
from tests import classifier_recipe
from tests.cli.conftest import start


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A trained run of the recipe, with averaged weights."""
    folder = tmp_path_factory.mktemp("evaluate")
    recipe = classifier_recipe.write(folder / "small")
    path = folder / "run"
    options = ["--ema", "0.9", "--quiet", "--run-dir", str(path)]
    assert main.main(["fit", str(recipe), *options]) == 0
    return path


@pytest.fixture(scope="module")
def truth(run):
    """`(labels, answers)` of the validation data, by `kerasdist.predict`."""
    data = kerasdist.load_recipe(run / "config.json").build_data("validation")
    return data["label"], kerasdist.predict(run, data).argmax(axis=-1)


@pytest.fixture(scope="module")
def alone(run):
    """What the command prints, on one device."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main.main(["evaluate", str(run), "--json"]) == 0
    return json.loads(printed.getvalue())


def matrix_of(labels, answers, size=3):
    matrix = np.zeros((size, size), int)
    np.add.at(matrix, (labels, answers), 1)
    return matrix.tolist()


def test_evaluate_gives_the_validation_metrics_of_the_run(command, tiny):
    end = command("fit", "tiny", "--ema", 0.5, "--json").objects[-1]
    expected = {"loss": end["val_loss"], "mae": end["val_mae"]}
    done = command("evaluate", "runs/tiny/0001", "--json", "--devices", 3)
    assert (done.code, done.err) == (0, "")
    assert done.objects == [pytest.approx(expected, rel=1e-5)]
    plain = command("evaluate", "runs/tiny/0001", "--batch-size", 7)
    about = r" \(validation data, 40 examples \(recipe\), final model\)\n"
    assert re.fullmatch(r"loss = [\d.]+, mae = [\d.]+" + about, plain.out)
    some = command("evaluate", "runs/tiny/0001", "--which", "last", "--steps", 2).out
    assert some.endswith(" (validation data, 2 batches, last model)\n")
    train = command("evaluate", "runs/tiny/0001", "--json", "--split", "train").objects[0]
    assert train["loss"] != pytest.approx(expected["loss"], rel=1e-3)


def test_evaluate_uses_the_precision_of_the_run(command, tiny):
    end = command("fit", "tiny", "--precision", "mixed_bfloat16", "--json").objects[-1]
    done = command("evaluate", "runs/tiny/0001", "--json")
    assert done.objects[0]["loss"] == pytest.approx(end["val_loss"], rel=1e-6)
    assert keras.config.dtype_policy().name == "float32"


def test_v_shows_the_messages_of_tensorflow_and_evaluate_makes_its_devices(command, tiny, tmp_path):
    """In a process of its own, where TensorFlow has not started with six CPUs."""
    end = command("fit", "tiny", "--steps", 1, "--json").objects[-1]
    arguments = ("evaluate", "runs/tiny/0001", "--devices", 2, "--json", "-v")
    with start(*arguments, cwd=tmp_path) as process:
        out, errors = process.communicate()
    assert process.returncode == 0
    assert json.loads(out)["loss"] == pytest.approx(end["val_loss"], rel=1e-5)
    assert "tensorflow" in errors.lower() or "cuda" in errors.lower()


def test_metrics_are_those_of_kerasdist_evaluate_and_counts_those_of_predict(alone, run, truth):
    labels, answers = truth
    data = kerasdist.load_recipe(run / "config.json").build_data("validation")
    expected = kerasdist.evaluate(run, data)
    found = alone
    assert {name: found[name] for name in expected} == expected
    assert set(found) - set(expected) == {"classes", "confusion", "groups"}
    assert 0.4 < expected["accuracy"] < 1  # There are right and wrong answers to count.
    assert found["confusion"] == matrix_of(labels, answers)
    assert found["classes"] == [
        {
            "name": name,
            "accuracy": np.mean(answers[labels == i] == i),
            "correct": np.sum(answers[labels == i] == i),
            "examples": np.sum(labels == i),
        }
        for i, name in enumerate(("low", "middle", "high"))
    ]
    is_bob = np.arange(100) % 3 == 0
    assert [(row["name"], row["accuracy"]) for row in found["groups"]["speaker"]] == [
        ("ann", np.mean((answers == labels)[~is_bob])),
        ("bob", np.mean((answers == labels)[is_bob])),
    ]


def test_counts_do_not_depend_on_devices_and_batches(command, run, alone):
    (found,) = command("evaluate", run, "--json", "--devices", 3, "--batch-size", 7).objects
    for name in ("confusion", "classes", "groups"):
        assert found[name] == alone[name]
    assert found["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    assert found["accuracy"] == pytest.approx(alone["accuracy"], rel=1e-6)


@pytest.mark.parametrize("devices", [1, 2])
def test_test_time_augmentation_averages_the_outputs_and_is_reported_apart(
    command, run, alone, devices
):
    (found,) = command("evaluate", run, "--json", "--tta", "--devices", devices).objects
    data = kerasdist.load_recipe(run / "config.json").build_data("validation")
    image, label = data["image"], data["label"]
    views = [image, image[:, :, ::-1], image + 3]
    logits = np.mean([kerasdist.predict(run, {**data, "image": v}) for v in views], axis=0)
    assert found["tta"]["accuracy"] == pytest.approx(np.mean(logits.argmax(-1) == label))
    powers = np.exp(logits.astype("float64"))
    likelihood = (powers / powers.sum(-1, keepdims=True))[np.arange(100), label]
    assert found["tta"]["loss"] == pytest.approx(-np.log(likelihood).mean(), rel=1e-5)
    assert found["tta"]["loss"] != pytest.approx(alone["loss"], rel=1e-3)
    assert found["loss"] == pytest.approx(alone["loss"], rel=1e-5)
    done = command("evaluate", run, "--tta")
    assert done.lines[1].startswith("with test-time augmentation: loss = ")


def test_test_time_augmentation_needs_views(command, tmp_path):
    without = classifier_recipe.DATA.replace("build_views", "no_views")
    recipe = classifier_recipe.write(tmp_path / "small", data=without)
    command("fit", recipe, "--epochs", 1, "--quiet", "--run-dir", tmp_path / "run")
    done = command("evaluate", tmp_path / "run", "--tta")
    assert done.code == 2
    assert "build_views(config)" in done.err


def test_steps_and_split_choose_the_examples(command, run, truth):
    labels, answers = truth
    (found,) = command("evaluate", run, "--json", "--steps", 2, "--batch-size", 10).objects
    assert found["confusion"] == matrix_of(labels[:20], answers[:20])
    assert sum(row["examples"] for row in found["groups"]["speaker"]) == 20
    (found,) = command("evaluate", run, "--json", "--split", "train").objects
    train = kerasdist.load_recipe(run / "config.json").build_data("train")
    assert [row["examples"] for row in found["classes"]] == np.bincount(train["label"]).tolist()


def test_plain_lines_where_there_is_no_terminal(command, run, truth):
    labels, answers = truth
    done = command("evaluate", run)
    about = r" \(validation data, 100 examples, final model\)"
    assert re.fullmatch(r"loss = [\d.]+, accuracy = [\d.]+" + about, done.lines[0])
    right = int(np.sum((labels == 1) & (answers == 1)))
    share = f"{right / np.sum(labels == 1):.4g}"
    assert done.lines[2] == f"class middle: accuracy = {share} ({right} of {np.sum(labels == 1)})"
    assert [line.split(":")[0] for line in done.lines[4:6]] == ["speaker ann", "speaker bob"]
    assert done.lines[6] == "confusion (rows: the label, columns: the answer)"
    assert done.lines[7].split() == ["low", "middle", "high"]
    rows = [line.split() for line in done.lines[8:]]
    assert [[row[0], *map(int, row[1:])] for row in rows] == [
        [name, *counts]
        for name, counts in zip(("low", "middle", "high"), matrix_of(labels, answers), strict=True)
    ]


def test_tables_on_a_terminal(command, run, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")  # What makes rich believe in a terminal.
    monkeypatch.setenv("COLUMNS", "100")
    text = re.sub(r"\x1b\[[\d;]*m", "", command("evaluate", run).out)
    assert re.search(r"│ middle +│ +[\d.]+% │ +\d+ │ +\d+ │", text)
    assert re.search(r"│ bob +│ +[\d.]+% │ +\d+ │ +34 │", text)
    assert re.search(r"│ high +│ +\d+ │ +\d+ │ +\d+ │", text)


def test_the_title_of_a_narrow_matrix_stays_in_one_line(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "80")
    print_counts(confusion.Counts(("a", "b"), np.eye(2, dtype=int), {}))
    lines = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()
    assert "confusion (rows: the label, columns: the answer)" in map(str.strip, lines)


def test_class_names_with_brackets_and_colons_are_shown_as_they_are(capsys, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "100")
    names = ("[old] cat", "[/b]", ":dog:")
    print_counts(confusion.Counts(names, np.eye(3, dtype=int), {}))
    text = re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out)
    assert [text.count(name) for name in names] == [3, 3, 3]  # Both tables and a column's title.


def test_which_chooses_the_model(command, run, alone, tmp_path):
    assert command("evaluate", run, "--json", "--which", "last").objects == [alone]
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    for name in ("config.json", "model.json"):
        (unfinished / name).write_bytes((run / name).read_bytes())
    done = command("evaluate", unfinished)
    assert done.code == 2
    assert "has not finished" in done.err
    done = command("evaluate", unfinished, "--which", "last")
    assert done.code == 2
    assert "no trained model yet" in done.err
    (unfinished / "best.keras").write_bytes((run / "final.keras").read_bytes())
    assert command("evaluate", unfinished, "--which", "best", "--json").objects == [alone]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ('CLASS_NAMES = ("low", "middle", "high")', 'CLASS_NAMES = "lmh"', "tuple of strings"),
        ('return {"speaker": [', "return ([", "Received list from the recipe's `build_groups`"),
    ],
)
def test_wrong_names_and_groups_are_refused(tmp_path, old, new, words):
    data = classifier_recipe.DATA.replace(old, new)
    data = data.replace(
        "for i in range(100)]}", f"for i in range(100)]{')' if '([' in new else '}'}"
    )
    recipe = kerasdist.load_recipe(classifier_recipe.write(tmp_path / "wrong", data=data))
    with pytest.raises(kerasdist.KerasdistError, match=words):
        (extras.class_names(recipe), extras.groups(recipe, "validation"))


@pytest.mark.parametrize("line", ["evaluate", "evaluate --json", "evaluate RUN extra"])
def test_usage_errors(command, run, line):
    done = command(*(run if word == "RUN" else word for word in line.split()))
    assert done.code == 2
    assert done.err.count("\n") == 1
    done = command("evaluate", run, "--which", "fnal")
    assert done.code == 2
    assert "Did you mean 'final'?" in done.err


def test_too_many_classes_for_a_screen_show_the_largest_mistakes(capsys):
    names = tuple(f"c{i}" for i in range(21))
    matrix = np.eye(21, dtype=int) * 5
    matrix[3, 4], matrix[7, 2] = 9, 11
    matrix[20] = 0
    print_counts(confusion.Counts(names, matrix, {}))
    lines = capsys.readouterr().out.splitlines()
    assert lines[20:] == ["class c20: no examples", "mistake c7 -> c2: 11", "mistake c3 -> c4: 9"]
