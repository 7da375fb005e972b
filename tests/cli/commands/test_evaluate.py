"""`kerasdist evaluate`: metrics, by class and by group, in one pass."""

import contextlib
import io
import json
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.cli import main
from kerasdist.cli.commands.evaluate import measure, print_counts
from kerasdist.evaluation import classes as predictions
from kerasdist.evaluation import confusion
from kerasdist.recipes import extras
from tests import classifier_recipe


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
    assert re.fullmatch(r"loss = [\d.]+, accuracy = [\d.]+", done.lines[0])
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


def test_which_chooses_the_model(command, run, alone, tmp_path):
    assert command("evaluate", run, "--json", "--which", "last").objects == [alone]
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    for name in ("config.json", "model.json"):
        (unfinished / name).write_bytes((run / name).read_bytes())
    done = command("evaluate", unfinished)
    assert done.code == 2
    assert "did not finish" in done.err
    done = command("evaluate", unfinished, "--which", "last")
    assert done.code == 2
    assert "no trained model yet" in done.err
    (unfinished / "best.keras").write_bytes((run / "final.keras").read_bytes())
    assert command("evaluate", unfinished, "--which", "best", "--json").objects == [alone]


def test_groups_for_another_number_of_examples_are_refused(x):
    labels = np.arange(50) % 3
    model = model_of(3, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    classes = tally_of(model, labels).classes
    for count in (49, 51):
        tally = confusion.Tally(classes, {"speaker": np.array(["ann"] * count)})
        with pytest.raises(kerasdist.KerasdistError, match=f"{count} names of the group 'speaker'"):
            measure(model, (x, labels), tally)
    tally = confusion.Tally(classes, {"speaker": np.array(["ann"] * 51)})
    _, counts = measure(model, (x, labels), tally, steps=1, batch_size=50)
    assert counts.groups["speaker"][0].examples == 50


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


def test_names_for_another_number_of_classes_are_refused():
    model = model_of(3, "sparse_categorical_crossentropy")
    with pytest.raises(kerasdist.KerasdistError, match=r"2 names .* 3 classes"):
        tally_of(model, np.arange(3), names=("low", "high"))


@pytest.mark.parametrize("line", ["evaluate", "evaluate --json", "evaluate RUN extra"])
def test_usage_errors(command, run, line):
    done = command(*(run if word == "RUN" else word for word in line.split()))
    assert done.code == 2
    assert done.err.count("\n") == 1
    done = command("evaluate", run, "--which", "fnal")
    assert done.code == 2
    assert "Did you mean 'final'?" in done.err


# Models and data of other kinds.


def model_of(units, loss, **compiled):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])
    model.compile("sgd", loss, metrics=["accuracy"], **compiled)
    return model


def tally_of(model, targets, names=None):
    x, y = (
        tf.TensorSpec((None, 4), "float32"),
        tf.TensorSpec((None, *targets.shape[1:]), targets.dtype),
    )
    classes, _ = predictions.classes_of_run(model, (x, y), names)
    return None if classes is None else confusion.Tally(classes, {})


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(50, 4)).astype("float32")


def test_a_generator_that_can_be_read_once_is_enough(x):
    labels = np.arange(50) % 3
    model = model_of(3, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batches = ((x[i : i + 8], labels[i : i + 8]) for i in range(0, 50, 8))
    results, counts = measure(model, batches, tally_of(model, labels))
    assert results == kerasdist.evaluate(model, (x, labels), batch_size=8)
    assert counts.matrix.tolist() == matrix_of(labels, np.asarray(model(x)).argmax(-1))
    assert type(model) is keras.Sequential  # As it was before.
    assert kerasdist.evaluate(model, (x, labels), batch_size=8) == results


def test_one_hot_targets_of_a_crossentropy_are_labels(x):
    labels = np.arange(50) % 3
    targets = np.eye(3, dtype="float32")[labels]
    model = model_of(3, keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1))
    _, counts = measure(model, (x, targets), tally_of(model, targets))
    assert counts.matrix.tolist() == matrix_of(labels, np.asarray(model(x)).argmax(-1))


@pytest.mark.parametrize("from_logits", [True, False])
def test_a_binary_classifier_has_two_classes(x, from_logits):
    labels = (np.arange(50) % 3 == 0).astype("float32")[:, None]
    model = model_of(1, keras.losses.BinaryCrossentropy(from_logits=from_logits))
    _, counts = measure(model, (x, labels), tally_of(model, labels))
    answers = (np.asarray(model(x)) > (0 if from_logits else 0.5)).astype(int)
    expected = matrix_of(labels[:, 0].astype(int), answers[:, 0], 2)
    assert counts.matrix.tolist() == expected
    assert counts.names == ("0", "1")


def test_a_regression_has_no_classes(x):
    model = model_of(3, "mse")
    assert tally_of(model, x[:, :3]) is None
    results, counts = measure(model, (x, x[:, :3]), None)
    assert counts is None
    assert results == kerasdist.evaluate(model, (x, x[:, :3]))


def test_weighted_metrics_and_ignored_labels_stay_as_they_were(x):
    labels = np.arange(50) % 3
    labels[::5] = -1
    weights = np.linspace(0, 2, 50).astype("float32")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    model = model_of(
        3, loss, weighted_metrics=[keras.metrics.SparseCategoricalAccuracy("weighted")]
    )
    data = (x, labels, weights)
    results, counts = measure(
        model, data, tally_of(model, labels), devices=[f"CPU:{i}" for i in range(3)]
    )
    assert results == pytest.approx(kerasdist.evaluate(model, data), rel=1e-5)
    assert results["weighted"] != results["accuracy"]
    assert counts.matrix.sum() == 40


def test_too_many_classes_for_a_screen_show_the_largest_mistakes(capsys):
    names = tuple(f"c{i}" for i in range(21))
    matrix = np.eye(21, dtype=int) * 5
    matrix[3, 4], matrix[7, 2] = 9, 11
    matrix[20] = 0
    print_counts(confusion.Counts(names, matrix, {}))
    lines = capsys.readouterr().out.splitlines()
    assert lines[20:] == ["class c20: no examples", "mistake c7 -> c2: 11", "mistake c3 -> c4: 9"]
