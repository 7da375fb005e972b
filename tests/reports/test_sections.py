"""The parts of a report that show what a model answers, and what it is made of."""

import base64
import doctest
import json
import re

import pytest

from kerasdist.reports import page
from kerasdist.reports.sections import (
    confusion,
    examples,
    layers,
    numbers,
    probabilities,
    regression,
)
from kerasdist.runs.results import headline
from tests import run_folders
from tests.reports.pages import EVALUATION, html_of

PICTURE = base64.b64encode(b"a picture").decode()
VALUES = {
    "examples": 3,
    "is_whole": True,
    "steps": 6,
    "targets": [
        {"name": "price", "examples": 900, "mae": 1.5, "rmse": 2.5, "r2": 0.75,
         "points": [[1.0, 1.5], [2.0, 2.0], [3.0, 2.5]],
         "residuals": {"edges": [-1, 0, 1], "counts": [1, 2]}}
    ],
    "worst": [{"position": 2, "loss": 0.5, "target": 3.0, "prediction": 2.5, "png": None}],
    "best": [],
}  # fmt: skip


@pytest.mark.parametrize("module", [page, numbers, headline], ids=lambda m: m.__name__)
def test_examples_of_docstrings_run(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


def test_the_worst_class_is_first():
    evaluation = {
        "classes": ["cat", "dog", "eel", "unseen"],
        "confusion": [[8, 2, 0, 0], [6, 4, 0, 0], [0, 0, 10, 0], [0, 0, 0, 0]],
        "examples": 30, "is_whole": True, "steps": 7,
    }  # fmt: skip
    text = confusion.classes(evaluation)
    rows = re.findall(r"<tr><th>(\w+)</th>(<td.*?)</tr>", text)
    cells = [(name, re.findall(r"<td.*?>(.*?)</td>", row)) for name, row in rows]
    assert cells == [
        ("dog", ["66.7%", "40.0%", "50.0%", "10"]),
        ("cat", ["57.1%", "80.0%", "66.7%", "10"]),
        ("eel", ["100.0%", "100.0%", "100.0%", "10"]),
        ("unseen", ["–", "–", "–", "0"]),
    ]
    assert "All 30 validation examples after step 7. 22 of 30 answers are right (73.3%)." in text


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"is_whole": True, "is_random": True}, "All 10,000 validation examples."),
        ({"is_random": True}, "10,000 of the validation examples, chosen at random."),
        ({}, "The first 10,000 validation examples."),
    ],
)
def test_a_page_says_how_many_examples_it_covers(fields, expected):
    assert confusion.of_which({"examples": 10_000, **fields}) == expected


def test_a_regression_has_plots_instead_of_a_matrix(tmp_path):
    text = html_of(run_folders.finished(tmp_path / "run", evaluation=VALUES))
    assert "<h2>Predictions and targets</h2>" in text
    assert "<h2>Confusion matrix</h2>" not in text
    assert "<figcaption>price: predicted by true</figcaption>" in text
    assert "3 of 900 examples, evenly chosen" in text
    assert "<tr><th>price</th><td>1.5</td><td>2.5</td><td>0.75</td></tr>" in text
    assert "<h3>Highest error</h3>" in text
    assert "prediction <b>2.5</b>" in text


def test_probabilities_have_their_plots():
    calibration = {"bins": [[0.5, 0.6, 0.5, 4], [0.9, 1.0, 1.0, 6]], "error": 0.0375}
    curve = {"class": "<b>", "points": [[0.5, 1.0], [1.0, 0.75]], "average_precision": 0.875,
             "share": 0.4}  # fmt: skip
    first, second = probabilities.plots({"calibration": calibration, "precision_recall": curve})
    assert (
        "Finding the class “&lt;b&gt;”: average precision 0.875 (always answering it: 0.4)" in first
    )
    assert 'data-values="0.5:1 1:0.75"' in first
    assert "on average it is 3.8% off" in second
    assert second.count("<rect") == 2
    assert probabilities.plots({}) == ["", ""]


def test_sounds_and_pictures_are_in_the_page():
    shown = {**EVALUATION["worst"][0], "png": PICTURE, "wav": PICTURE}
    text = examples.shown({"worst": [shown]})
    assert f'<img alt="example 4" src="data:image/png;base64,{PICTURE}">' in text
    player = f'<audio controls preload="none" src="data:audio/wav;base64,{PICTURE}"></audio>'
    assert player in text
    for bad in ('"><script>', 3, None, [], "a b"):
        text = examples.shown({"worst": [{**shown, "png": bad, "wav": bad}]})
        assert "<img" not in text
        assert "<audio" not in text


def test_values_of_examples_are_in_the_page():
    found = {**EVALUATION["worst"][0], "values": {"line": "7", "<age>": "<22>"}}
    text = examples.shown({"worst": [found]})
    assert '<span class="soft">line</span> 7' in text
    assert '<span class="soft">&lt;age&gt;</span> &lt;22&gt;' in text
    for bad in ("x", 3, [1], {"a": {"b": 1}}):
        assert "label <b>" in examples.shown({"worst": [{**found, "values": bad}]})


def test_a_regression_names_its_target():
    assert "price <b>3</b>" in examples.shown(VALUES)
    without = {**VALUES, "targets": [VALUES["targets"][0]] * 2}
    assert "target <b>3</b>" in examples.shown(without)


def test_a_training_batch_is_a_mosaic():
    batch = {"pictures": [{"png": PICTURE, "label": "<cat>"}, {"png": None}, 3],
             "examples": 512, "is_augmented": True}  # fmt: skip
    text = examples.training_batch({"training_batch": batch})
    assert text.count("<img") == 1
    assert "&lt;cat&gt;" in text
    assert "1 of the 512 examples of the first batch" in text
    assert "after augmentation" in text
    assert examples.training_batch({}) == ""


def test_the_layers_of_a_model_are_listed():
    model = {
        "class_name": "Net",
        "summary": {
            "parameters": 1234,
            "trainable": 1000,
            "layers": [
                {"name": "conv", "class": "Conv2D", "output": [None, 8, 3], "parameters": 1234},
                {"name": "<b>", "class": "Lambda", "output": None, "parameters": 0},
            ],
        },
    }
    text = layers.table(model)
    assert "Net: 1,234 parameters, 1,000 of them trainable" in text
    assert "<td>? × 8 × 3</td><td>1,234</td>" in text
    assert "<th>&lt;b&gt;</th><td>Lambda</td><td>–</td>" in text
    many = {**model["summary"], "layers": model["summary"]["layers"] * 200}
    assert "… and 200 more layers" in layers.table({**model, "summary": many})


@pytest.mark.parametrize("value", [[], 3, "x", None, {"a": 1}, [1, 2], [[1]], [{}], True])
def test_files_with_other_things_in_them_are_no_error(tmp_path, value):
    folder = run_folders.finished(tmp_path / "run")
    whole = {
        **EVALUATION,
        "calibration": {"bins": [[0, 1, 1, 1]], "error": 0.1},
        "precision_recall": {"points": [[1, 1]], "class": "a", "average_precision": 1, "share": 1},
        "training_batch": {"pictures": [], "examples": 1, "is_augmented": True},
    }
    for content in (whole, VALUES):
        for key, inner in content.items():
            changes = [value]
            if isinstance(inner, dict):
                changes += [{**inner, name: value} for name in inner]
            if key == "targets":
                changes += [[{**inner[0], name: value}] for name in inner[0]]
            for change in changes:
                (folder / "evaluation.json").write_text(json.dumps({**content, key: change}))
                html_of(folder)
    for model in (value, {"summary": value}, {"summary": {"layers": value, "parameters": value}},
                  {"summary": {"layers": [{"name": value, "output": value}]}}):  # fmt: skip
        (folder / "model.json").write_text(json.dumps(model))
        html_of(folder)


def test_without_answers_there_is_nothing_to_show():
    assert confusion.classes({}) == confusion.matrix({}) == regression.targets({}) == ""
    empty = {"classes": ["a"], "confusion": [[0]], "examples": 0}
    assert confusion.classes(empty) == ""
    assert layers.table({}) == ""
