"""From a table or texts to a trained, evaluated and exported model, by the command line."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.recipes.own_data import class_folders
from kerasdist.recipes.own_data.kinds import TEXTS
from tests.own_tables import (
    GOOD,
    HEADER,
    logistic_regression,
    passengers,
    review,
    write_table,
    write_texts,
)

FIT = ("fit", "people.csv", "--target", "Survived", "--deterministic")


def environment():
    return {k: v for k, v in os.environ.items() if k != "KERASDIST_LOGICAL_CPUS"}


def trained(place, *argv):
    """Runs `kerasdist` in a process of its own, as people do."""
    argv = [sys.executable, "-m", "kerasdist", *argv]
    done = subprocess.run(argv, cwd=place, env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def people(tmp_path_factory):
    """A run of a table, in the folder that holds both."""
    place = tmp_path_factory.mktemp("people")
    write_table(place / "people.csv", HEADER, passengers())
    (place / "out.txt").write_text(trained(place, *FIT))
    return place


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    place = tmp_path_factory.mktemp("letters")
    write_texts(place / "letters")
    (place / "out.txt").write_text(trained(place, "fit", "letters", "--deterministic"))
    return place


def result(run):
    return json.loads((run / "result.json").read_text())


def test_a_table_is_learnt_no_worse_than_by_logistic_regression(people):
    table = kerasdist.Table(people / "people.csv", target="Survived")
    least = logistic_regression(table.train, table.validation, table.schema.sizes)
    assert least > 0.75
    assert result(people / "runs/people/0001")["val_accuracy"] >= least - 0.025


def test_it_says_what_was_found(people):
    lines = (people / "out.txt").read_text().splitlines()
    found = dict(line.split("  ", 1) for line in lines[:9])
    found = {title: text.strip() for title, text in found.items()}
    assert found["table"] == "700 rows, 9 columns"
    assert found["target"].startswith("Survived, 2 classes: 0 (")
    assert found["numbers"].startswith("Age (")
    assert found["few numbers"] == "Pclass, SibSp"
    assert found["categories"].startswith("Sex (2 values), Embarked (3 values, ")
    assert found["texts"] == "Name"
    assert found["left out"] == "PassengerId (another number in each row)"
    assert found["split"] == "560 rows to train on, 140 to validate"
    assert max(map(len, lines[:9])) <= 100
    rows = "560 rows of people.csv, 140 rows for validation"
    assert lines[9:11] == ["run          runs/people/0001", f"data         {rows}"]


def test_the_report_shows_values_of_rows_and_texts(people, letters):
    found = json.loads((people / "runs/people/0001/evaluation.json").read_text())
    lines = (people / "people.csv").read_text().splitlines()
    for example in (*found["worst"], *found["best"]):
        (row,) = csv.DictReader([lines[0], lines[int(example["values"]["line"]) - 1]])
        assert row["Survived"] == example["label"]
        assert row["PassengerId"] == example["values"]["PassengerId"]
    assert "Family" in (people / "runs/people/0001/report.html").read_text()
    found = json.loads((letters / "runs/letters/0001/evaluation.json").read_text())
    for example in found["worst"]:
        assert example["values"]["file"].startswith(f"{example['label']}/")
        text = (letters / "letters" / example["values"]["file"]).read_text()
        assert text.startswith(example["values"]["text"].removesuffix("…"))


def test_evaluate_counts_per_class(people, command):
    run = people / "runs/people/0001"
    (found,) = command("evaluate", run, "--json").objects
    assert found["accuracy"] == pytest.approx(result(run)["val_accuracy"])
    assert [row["name"] for row in found["classes"]] == ["0", "1"]
    assert sum(row["examples"] for row in found["classes"]) == 140
    other = write_table(people / "other.csv", HEADER, passengers(60, seed=1))
    (found,) = command("evaluate", run, "--data-dir", other, "--split", "all", "--json").objects
    assert sum(row["examples"] for row in found["classes"]) == 60
    done = command("evaluate", run, "--split", "test")
    assert (done.code, "no test data" in done.err) == (2, True)


@pytest.fixture
def unseen(tmp_path):
    """Rows without a target, in another order, with a new category."""
    order = (4, 8, 7, 6, 5, 3, 2, 0)
    rows = [[row[i] for i in order] for row in passengers(20, seed=2)]
    rows[0][1] = "Atlantis"
    return write_table(tmp_path / "new.csv", [HEADER[i] for i in order], rows)


def test_predict_answers_each_row(people, command, unseen):
    run = people / "runs/people/0001"
    answers = command("predict", run, unseen, "--json").objects
    assert [answer["row"] for answer in answers] == list(range(1, 21))
    assert {answer["class"] for answer in answers} == {"0", "1"}
    done = command("predict", run, "new.csv")
    assert done.lines[0].startswith(f"new.csv row 1: {answers[0]['class']} ")
    done = command("predict", run, "new.csv", "--output", "answers.csv")
    assert done.lines == ["wrote answers.csv (20 rows)"]
    with open("answers.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["class"] for row in rows] == [answer["class"] for answer in answers]
    assert float(rows[3]["probability"]) == pytest.approx(answers[3]["probability"], abs=1e-5)


def test_answers_have_the_numbers_of_the_rows_in_the_file(command, tmp_path):
    """Also after lines that were left out."""
    rows = [[i * i % 37, "ab"[i % 2]] for i in range(40)]
    write_table(tmp_path / "t.csv", ["x", "label"], rows)
    assert command("fit", "t.csv", "--skip-bad", "--epochs", 1, "--quiet").code == 0
    (tmp_path / "new.csv").write_text("x,z\n1,0\n2,3,4\n4,0\n")
    done = command("predict", "runs/t/0001", "new.csv", "--json")
    assert [answer["row"] for answer in done.objects] == [1, 3]
    assert done.err.startswith("careful: 1 bad line of 'new.csv' left out")  # Without a path.
    assert done.err.count("\n") == 1


def test_predict_leaves_out_bad_lines_and_bad_tables(people, command, tmp_path):
    run = people / "runs/people/0001"
    write_table(tmp_path / "new.csv", HEADER, passengers(5))
    with open("new.csv", "a") as file:
        file.write("1,2\n")
    (tmp_path / "other.csv").write_text("a,b\n1,2\n")
    assert "--skip-bad" in command("predict", run, "new.csv").err
    done = command("predict", run, "new.csv", "other.csv", "--skip-bad", "--json")
    assert (done.code, [o["row"] for o in done.objects]) == (0, [1, 2, 3, 4, 5])
    assert "careful: 1 bad line of 'new.csv'" in done.err
    assert "skipped 'other.csv': The table 'other.csv' has no columns" in done.err


@pytest.mark.parametrize(
    ("output", "message"),
    [("new.csv", "which exists"), ("answers.txt", "ends in .csv"), ("no/a.csv", "folder that")],
)
def test_answers_overwrite_nothing(people, command, unseen, output, message):
    done = command("predict", people / "runs/people/0001", "new.csv", "--output", output)
    assert (done.code, message in done.err) == (2, True)


def test_a_missing_column_is_named(people, command, tmp_path):
    write_table(tmp_path / "new.csv", HEADER[2:-1], [row[2:-1] for row in passengers(5)])
    done = command("predict", people / "runs/people/0001", "new.csv")
    assert (done.code, "has no column 'Embarked'" in done.err) == (2, True)


def test_the_exported_model_takes_the_columns_as_they_are(people, command, unseen):
    run = people / "runs/people/0001"
    answers = command("predict", run, unseen, "--json", "--top", 2).objects
    (about,) = command(
        "export", run, "--format", "saved_model", "--output", "served", "--json"
    ).objects
    assert any(
        "serve_rows takes the columns as they are: Pclass, Name" in n for n in about["notes"]
    )
    served = tf.saved_model.load("served").signatures["serve_rows"]
    with open(unseen, newline="") as file:
        rows = list(csv.DictReader(file))
    given = {}
    for name, spec in served.structured_input_signature[1].items():
        values = [row[name] for row in rows]
        if spec.dtype == tf.float32:
            values = [float(value or "nan") for value in values]
        given[name] = tf.constant(values, spec.dtype)
    found = served(**given)
    for answer, name, probabilities in zip(
        answers, found["class"].numpy(), found["probabilities"].numpy(), strict=True
    ):
        assert answer["class"] == name.decode()
        for guess in answer["top"]:
            assert guess["probability"] == pytest.approx(probabilities[guess["index"]], abs=1e-4)


def test_the_printed_call_of_an_exported_model_works(command, tmp_path):
    """Also with names that are words of Python, and numbers that float32 would round."""
    rows = [[i * i % 37 + 0.5, 20_240_101 + 3 * i, f"w{i % 3}", "ab"[i % 2]] for i in range(60)]
    write_table(tmp_path / "t.csv", ["class", "day", "is", "kind"], rows)
    assert command("fit", "t.csv", "--target", "kind", "--epochs", 1, "--quiet").code == 0
    done = command("export", "runs/t/0001", "--format", "saved_model")
    lines = done.lines[done.lines.index("call it from Python:") + 1 :]
    call = "\n".join(line.strip() for line in lines)
    assert "class_=tf.constant([0.0]), day=tf.constant([0.0], tf.float64), is_=" in call
    exec(call)


def test_it_is_exported_to_litert(people, command):
    done = command(
        "export", people / "runs/people/0001", "--format", "litert", "--output", "m.tflite"
    )
    assert done.code == 0, done.err
    assert "`schema` in the run's config.json" in done.out


def test_the_run_needs_no_table(people, command, unseen):
    (people / "people.csv").rename(people / "moved.csv")
    try:
        run = people / "runs/people/0001"
        assert command("predict", run, unseen).code == 0
        done = command("evaluate", run)
        assert (done.code, "does not exist" in done.err) == (2, True)
        moved = people / "moved.csv"
        (found,) = command("evaluate", run, "--data-dir", moved, "--json").objects
        assert found["accuracy"] == pytest.approx(result(run)["val_accuracy"])
    finally:
        (people / "moved.csv").rename(people / "people.csv")


def test_the_same_bits_on_two_devices(command, tmp_path):
    write_table(tmp_path / "people.csv", HEADER, passengers(100))
    argv = ("people.csv", "--counts", "1,2", "--steps", 4, "--deterministic", "--json")
    (found,) = command("verify", *argv).objects
    assert found["agree"] is True


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["1", "2"])
def test_a_killed_run_continues_to_the_same_bits(people, devices):
    argv = [*FIT, "--save-every", "20", "--run-dir", f"runs/killed{devices}", "--devices", devices]
    command = [sys.executable, "-m", "kerasdist", *argv]
    process = subprocess.Popen(
        command, cwd=people, env=environment(), stdout=subprocess.PIPE, text=True
    )
    for line in process.stdout:
        if "epoch 5/" in line:
            process.send_signal(signal.SIGKILL)
            break
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert "continuing after step" in trained(people, *argv)
    found = result(people / "runs" / f"killed{devices}")["weights_sha256"]
    assert found == result(people / "runs/people/0001")["weights_sha256"]


def test_numbers_are_predicted_in_their_units(command, tmp_path):
    random = np.random.default_rng(0)
    size, rooms = random.uniform(30, 200, 300), random.integers(1, 6, 300)
    price = 100_000 + 5000 * size + 20_000 * rooms + random.normal(0, 20_000, 300)
    rows = zip(np.round(size, 1), rooms, np.round(price), strict=True)
    write_table(tmp_path / "homes.csv", ["size", "rooms", "price"], rows)
    done = command("fit", "homes.csv", "--target", "price", "--epochs", 60, "--seed", 1)
    assert done.code == 0, done.err
    found = result(Path("runs/homes/0001"))
    assert found["val_r2"] > 0.9
    assert 10_000 < found["val_mae"] < 90_000
    write_table(tmp_path / "new.csv", ["rooms", "size"], [[3, 100], [1, 40]])
    large, small = command("predict", "runs/homes/0001", "new.csv", "--json").objects
    assert large["values"][0] == pytest.approx(660_000, rel=0.15)
    assert small["values"][0] == pytest.approx(320_000, rel=0.25)
    command("predict", "runs/homes/0001", "new.csv", "--output", "prices.csv")
    assert Path("prices.csv").read_text().startswith("file,row,value\nnew.csv,1,")
    done = command("evaluate", "runs/homes/0001")
    assert "mae = " in done.out
    assert "r2 = " in done.out


def test_texts_are_learnt(letters):
    assert result(letters / "runs/letters/0001")["val_accuracy"] >= 0.9
    lines = (letters / "out.txt").read_text().splitlines()
    assert lines[0].split(maxsplit=1) == ["found", "text files of 2 classes: bad 150, good 150"]


def test_texts_are_predicted_and_served(letters, command, tmp_path):
    run = letters / "runs/letters/0001"
    text = review(np.random.default_rng(9), GOOD)
    (tmp_path / "new.txt").write_text(text)
    (answer,) = command("predict", run, "new.txt", "--json").objects
    assert answer["class"] == "good"
    (tmp_path / "new.csv").write_text(f"text\n{text}\n")
    done = command("predict", run, "new.csv")
    assert (done.code, "was trained on text files, and only a run" in done.err) == (2, True)
    assert command("export", run, "--format", "saved_model", "--output", "served").code == 0
    served = tf.saved_model.load("served").signatures["serve_rows"]
    found = served(text=tf.constant([text, ""]))
    assert found["class"].numpy()[0] == b"good"
    assert found["probabilities"].numpy()[0, 1] == pytest.approx(answer["probability"], abs=1e-4)


def test_evaluate_uses_no_text_that_was_trained_on(letters, command, tmp_path):
    """After a folder has shrunk: with the same validation files, the metrics are the same."""
    run = letters / "runs/letters/0001"
    other = tmp_path / "other"
    shutil.copytree(letters / "letters", other)
    splits = class_folders.read(other, TEXTS).splits
    for name in splits["train"].names[::2]:
        (other / name).unlink()
    (found,) = command("evaluate", run, "--data-dir", other, "--json").objects
    assert sum(row["examples"] for row in found["classes"]) == len(splits["validation"])
    assert found["accuracy"] == pytest.approx(result(run)["val_accuracy"])
    for name in splits["validation"].names:
        (other / name).unlink()
    done = command("evaluate", run, "--data-dir", other)
    assert (done.code, "There is no validation data" in done.err) == (2, True)


def test_a_run_of_texts_from_before_the_split_was_kept_is_found(letters, command, monkeypatch):
    path = letters / "runs/letters/0001/config.json"
    kept = path.read_text()
    config = json.loads(kept)
    assert config["settings"]["schema"]["split"]["limits"]
    config["settings"]["schema"]["split"] = None
    path.write_text(json.dumps(config))
    monkeypatch.chdir(letters)
    try:
        assert command("fit", "letters", "--deterministic").code == 0
        assert not (letters / "runs/letters/0002").exists()
    finally:
        path.write_text(kept)


@pytest.mark.slow
def test_texts_give_the_same_bits_on_two_devices(letters):
    argv = ("fit", "letters", "--deterministic", "--devices", "2", "--run-dir", "runs/two")
    trained(letters, *argv)
    found = [result(letters / "runs" / name)["weights_sha256"] for name in ("two", "letters/0001")]
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("options", "most"),
    [
        ({}, 0.009),
        ({"learning_rate": 0.0001}, 0.0003),
        ({"optimizer": "momentum", "learning_rate": 0.1}, 0.009),
    ],
)
def test_a_step_shrinks_weights_a_little_whatever_the_learning_rate(people, options, most):
    config = kerasdist.load_recipe(people / "people.csv", target="Survived", **options).config
    assert most / 2 < config.weight_decay * config.learning_rate < most
    given = kerasdist.load_recipe(people / "people.csv", target="Survived", weight_decay=0.0)
    assert given.config.weight_decay == 0


@pytest.mark.parametrize("name", ["sgd", "momentum"])
def test_other_optimizers_learn_with_their_learning_rates(people, command, name):
    argv = ("--optimizer", name, "--learning-rate", 0.1, "--run-dir", f"runs/{name}", "--quiet")
    data = people / "people.csv"
    assert command("fit", data, "--target", "Survived", *argv).code == 0
    assert result(Path(f"runs/{name}"))["val_accuracy"] > 0.78


def test_a_column_of_texts_is_learnt(command, tmp_path):
    random = np.random.default_rng(0)
    rows = [[review(random, GOOD if i % 2 else ("dull", "awful")), i % 2] for i in range(200)]
    write_table(tmp_path / "reviews.csv", ["review", "label"], rows)
    assert command("fit", "reviews.csv", "--learning-rate", 0.01, "--quiet").code == 0
    assert result(Path("runs/reviews/0001"))["val_accuracy"] >= 0.9


@pytest.mark.parametrize(
    ("content", "argv", "message"),
    [
        ("a,b\n1,2\n2,3\n3,3\n", (), "not evident which column"),
        ("a,b\n1,2\n2,3,4\n", ("--target", "b"), "Line 3 of"),
        ("a,b\n1,x\n2,y\n", ("--target", "c"), "`target='c'`"),
        ("a,b\n1,x\n2,y\n", ("--target", "b", "--ignore", "q"), "`ignore` with 'q'"),
        ("a,b\n1.5,x\n2,x\n", ("--target", "b"), "one class only"),
    ],
)
def test_wrong_tables_are_refused_at_once(command, tmp_path, content, argv, message):
    (tmp_path / "t.csv").write_text(content)
    done = command("fit", "t.csv", *argv)
    assert (done.code, message in done.err) == (2, True), done.err
    assert not Path("runs").exists()


@pytest.mark.parametrize("source", ["table", "texts"])
def test_a_recipe_for_ones_own_data(command, tmp_path, source):
    write_table(tmp_path / "table.csv", HEADER, passengers(60))
    write_texts(tmp_path / "texts", 10)
    data = {"table": "table.csv", "texts": "texts"}[source]
    target = ("--target", "Pclass") if source == "table" else ()
    done = command("new", "mine", "--from", data, *target)
    assert done.code == 0, done.err
    assert command("fit", "mine", "--steps", 2, "--quiet").code == 0
    settings = json.loads(Path("runs/mine/0001/config.json").read_text())["settings"]
    assert settings.get("target") == (target[1] if target else None)
