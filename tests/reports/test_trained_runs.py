"""The reports that `kerasdist fit` writes."""

import base64
import json
import re
import shutil
from html import escape
from pathlib import Path

import numpy as np
import pytest

import kerasdist
from kerasdist.evaluation import examples
from kerasdist.reports import page
from tests import classifier_recipe
from tests.reports.pages import decoded, html_of


def test_fit_leaves_the_confusion_and_the_worst_and_best_examples(run):
    found = json.loads((run / "evaluation.json").read_text())
    data = kerasdist.load_recipe(run / "config.json").build_data("validation")
    outputs = np.asarray(kerasdist.predict(run, data), np.float64)  # of final.keras: the average
    powers = np.exp(outputs)
    shares = powers / powers.sum(axis=-1, keepdims=True)
    labels, answers = data["label"], outputs.argmax(axis=-1)
    losses = -np.log(shares[np.arange(100), labels])
    matrix = np.zeros((3, 3), int)
    np.add.at(matrix, (labels, answers), 1)
    assert found["confusion"] == matrix.tolist()
    assert (found["examples"], found["is_whole"], found["steps"]) == (100, True, 21)
    names = ("low", "middle", "high")
    by_loss = np.argsort(losses)
    # The best of each class, then the second of each; the worst, but at most four of a class.
    rounds = [np.flatnonzero(labels[by_loss] == label) for label in range(3)]
    in_turn = [by_loss[each[i]] for i in range(3) for each in rounds]
    best = sorted(
        sorted(in_turn[:6], key=losses.item) + sorted(in_turn[6:], key=losses.item)[:2],
        key=losses.item,
    )
    taken = [by_loss[each[::-1][:4]] for each in rounds]
    worst = sorted(np.concatenate(taken), key=losses.item)[::-1][:8]
    assert len({labels[i] for i in best}) == 3
    for kind, expected in (("worst", worst), ("best", best)):
        expected = np.array(expected)
        assert [e["position"] for e in found[kind]] == expected.tolist()
        for example, i in zip(found[kind], expected, strict=True):
            assert (example["label"], example["answer"]) == (names[labels[i]], names[answers[i]])
            assert example["loss"] == pytest.approx(losses[i], rel=1e-4)
            assert example["probability"] == pytest.approx(shares[i].max(), rel=1e-4)
            assert example["label_probability"] == pytest.approx(shares[i, labels[i]], rel=1e-4)
            picture = decoded(base64.b64decode(example["png"]))
            assert (picture == data["image"][i]).all()
    text = (run / "report.html").read_text()
    assert text.count("<img ") == 16 + 16  # A training batch has 16 examples.
    assert "<h2>Confusion matrix</h2>" in text


def test_fit_says_where_its_report_is(run, command, tmp_path):
    recipe = classifier_recipe.write(tmp_path / "small")
    done = command("fit", recipe, "--epochs", 1)
    assert (done.code, done.err) == (0, "")
    assert any("runs/small/0001" in line and "report.html" in line for line in done.lines)


def test_a_model_that_is_no_better_than_a_guess_is_said(command, tmp_path):
    # All answers are of the first class.
    one = "keras.layers.Dense(3, bias_initializer=keras.initializers.Constant([50.0, 0, 0]))"
    model = classifier_recipe.MODEL.replace("keras.layers.Dense(3)", one)
    recipe = classifier_recipe.write(tmp_path / "small", model=model)
    done = command("fit", recipe, "--epochs", 1, "--run-dir", "run")
    matrix = np.array(json.loads(Path("run/evaluation.json").read_text())["confusion"])
    most = matrix.sum(axis=1)
    guess = ("low", "middle", "high")[most.argmax()]
    words = (
        f"validation accuracy {np.trace(matrix)}.0% is no better than always answering {guess!r} "
        f"({most.max()}.0%)"
    )
    assert [line for line in done.lines if line.startswith("careful ")] == [f"careful   {words}"]
    assert f'<p class="note">Careful: {escape(words)}.</p>' in Path("run/report.html").read_text()


def test_a_model_that_is_better_than_a_guess_is_not(run):
    assert "no better" not in (run / "report.html").read_text()


def test_examples_that_cannot_be_had_do_not_fail_a_run(command, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise ValueError("no examples today\nmore")

    monkeypatch.setattr(examples, "evaluate", broken)
    recipe = classifier_recipe.write(tmp_path / "small")
    done = command("fit", recipe, "--epochs", 1, "--quiet", "--run-dir", "run")
    assert done.code == 0
    assert "no confusion matrix and no examples: no examples today" in done.err
    assert "more" not in done.err
    assert json.loads(Path("run/result.json").read_text())["status"] == "finished"
    assert '<span class="badge finished">' in Path("run/report.html").read_text()


def test_a_report_that_cannot_be_written_is_said_and_does_not_fail_a_run(
    command, tmp_path, monkeypatch
):
    monkeypatch.setattr(page, "render", lambda run: 1 / 0)
    recipe = classifier_recipe.write(tmp_path / "small")
    done = command("fit", recipe, "--epochs", 1, "--quiet", "--run-dir", "run")
    assert done.code == 0
    assert "report.html could not be written" in done.err


@pytest.mark.parametrize(
    ("error", "code", "status"),
    [(KeyboardInterrupt(), 130, "interrupted"), (RuntimeError("broken"), 1, "failed")],
)
def test_a_run_that_stops_has_a_report(command, tmp_path, monkeypatch, error, code, status):
    def stop(*_, **__):
        raise error

    monkeypatch.setattr("kerasdist.cli.commands.fit.train", stop)
    recipe = classifier_recipe.write(tmp_path / "small")
    done = command("fit", recipe, "--run-dir", "run")
    assert done.code == code
    assert f'<span class="badge {status}">' in Path("run/report.html").read_text()


def test_the_command_of_the_page_goes_on(run, command, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    text = html_of(copy)
    (line,) = re.findall(r"<pre>kerasdist (fit .* --run-dir .*)</pre>", text)
    assert line.endswith("--epochs 6")
    assert command(*line.split(), "--quiet").code == 0
    assert json.loads((copy / "result.json").read_text())["epochs"] == 6
    assert "after step 42" in (copy / "report.html").read_text()
