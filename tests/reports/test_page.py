"""report.html: what it shows of the files of a run, whole or broken."""

import json
import re

import numpy as np
import pytest

from kerasdist.reports import html
from kerasdist.reports.live import LiveReport
from kerasdist.reports.sections import confusion
from kerasdist.runs import reading
from tests import run_folders
from tests.reports.pages import EVALUATION, html_of


def test_a_finished_run_has_all_its_sections(tmp_path):
    logged = run_folders.lines(3, learning_rate=0.1, input_wait=0.25)
    folder = run_folders.finished(tmp_path / "run", evaluation=EVALUATION)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logged))
    text = html_of(folder)
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings == [
        "Summary",
        "Loss and metrics",
        "Classes",
        "Confusion matrix",
        "Worst and best examples",
        "Learning rate and throughput",
        "Configuration",
        "Environment",
        "Commands",
    ]
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", text)
    assert captions == [
        "accuracy",
        "loss",
        "learning rate",
        "examples per second",
        "waiting for input, % of the time",
    ]
    assert '<span class="badge finished">finished</span>' in text
    assert (
        '<div class="tile"><span>validation accuracy</span><b>84.3%</b>'
        "<small>best: 84.3% in epoch 3</small>"
    ) in text
    assert "<span>validation loss</span><b>0.1767</b>" in text
    assert "<span>examples/s</span><b>123</b>" in text
    assert "<tr><th>val_accuracy</th><td>0.8433</td><td>0.8433</td><td>3</td></tr>" in text
    assert "<dt>git commit</dt><dd>0123456789ab (with changes)</dd>" in text
    assert "<dt>units</dt><dd>8</dd>" in text
    assert "answer <b class=\"wrong\">dog</b> 87.5%" in text  # fmt: skip
    assert f"kerasdist fit {folder}/config.json --run-dir {folder} --epochs 6" in text
    assert f"kerasdist evaluate {folder}" in text


def test_the_lines_are_those_of_the_logs(tmp_path):
    text = html_of(run_folders.finished(tmp_path / "run", num_epochs=2))
    loss = text[text.index("<figcaption>loss<") : text.index("<figcaption>examples per")]
    titles = re.findall(r"<title>(.*?)</title>", loss)
    assert titles == [
        "training: 0.5 at 2",
        "training: 0.25 at 4",
        "validation: 0.51 at 2",
        "validation: 0.26 at 4",
    ]
    assert "training, each logged step" in loss


def test_a_run_without_validation_shows_training_alone(tmp_path):
    logged = run_folders.lines(2, validation=False)
    text = html_of(run_folders.write(tmp_path / "run", logged=logged, config={"recipe": "a"}))
    assert "validation:" not in text
    assert "<span>training loss</span><b>0.25</b>" in text
    assert "Confusion matrix" not in text
    assert "Worst and best" not in text


@pytest.mark.parametrize(
    ("status", "error"),
    [("diverged", "loss nan in step 7"), ("failed", "no room"), ("interrupted", "Ctrl-C")],
)
def test_a_run_that_stopped_says_why_and_how_to_go_on(tmp_path, status, error):
    result = {"status": status, "steps": 5, "error": error, "dataset": "synthetic"}
    folder = run_folders.write(
        tmp_path / "a run",
        logged=run_folders.lines(2),
        result=result,
        config={"recipe": "cifar10", "options": {"epochs": 9, "steps": None}},
    )
    text = html_of(folder)
    assert f"{status.capitalize()}: {error}" in text
    assert "Trained on synthetic data" in text
    assert "<b>2 of 9</b>" in text
    assert f"kerasdist fit '{folder}/config.json' --run-dir '{folder}'<" in text.replace(
        "&#x27;", "'"
    )


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"data_dir": "/home/me/people.csv"}, "people.csv"),
        ({"data_dir": "photos/"}, "photos"),
        ({"data_dir": None}, "files"),
        ({"data_dir": 3}, "files"),
    ],
)
def test_the_data_has_the_name_of_its_file_or_folder(tmp_path, settings, expected):
    folder = run_folders.finished(tmp_path / "run", settings=settings)
    assert f"<span>dataset</span><b>{expected}</b>" in html_of(folder)


def test_while_it_runs_it_is_running_whatever_an_earlier_result_says(tmp_path):
    folder = run_folders.finished(tmp_path / "run")
    LiveReport(folder).write()
    assert '<span class="badge running">' in (folder / "report.html").read_text()


def test_a_run_of_python_has_no_commands_that_do_not_work(tmp_path):
    config = {"batch_size": 4, "seed": 0}
    text = html_of(run_folders.write(tmp_path / "run", config=config))
    assert "kerasdist fit " not in text
    assert "kerasdist.fit(model, data, run_dir=" in text


def test_nothing_from_users_is_html(tmp_path):
    bad = "<script>alert('x')</script><img src=x onerror=1>\"'&"
    evaluation = json.loads(json.dumps(EVALUATION).replace("cat", "<script>cat"))
    evaluation["worst"][0]["png"] = '"><script>'
    folder = run_folders.finished(
        tmp_path / "<script>run",
        recipe=f"recipes/x {bad.replace('/', '')}",
        settings={bad: bad, "nested": {bad: [bad]}},
        environment={"time": bad, "packages": {bad: bad}, bad: bad, "devices": [bad]},
        evaluation=evaluation,
    )
    logged = [{"kind": "epoch", "step": 1, "epoch": 1, bad: 1.0, f"val_{bad}": 2.0}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logged))
    for status in ("finished", "failed", bad):
        result = {"status": status, "error": bad, "dataset": bad, "devices": [bad], bad: 1.0}
        (folder / "result.json").write_text(json.dumps(result))
        text = html_of(folder)
        assert text.count("<script") == 1
        assert f"<script>{html.asset('hover.js')}</script>" in text
        assert "<img" not in text
        assert "&lt;script&gt;cat" in text
        assert text.count("&lt;img src=x onerror=1&gt;") > 10
        assert "<a" not in text
        assert "Content-Security-Policy" in text


def test_a_page_needs_nothing_from_elsewhere(tmp_path):
    text = html_of(run_folders.finished(tmp_path / "run", evaluation=EVALUATION))
    assert "http:" not in text
    assert "https:" not in text
    assert "url(" not in text
    assert all(link.startswith("data:") for link in re.findall(r'(?:src|href)="([^"]*)', text))


def test_an_empty_folder_has_a_page(tmp_path):
    text = html_of(tmp_path)
    assert '<span class="badge unfinished">' in text
    assert "<h2>Loss and metrics</h2>" not in text


def test_broken_files_are_left_out(tmp_path):
    folder = run_folders.finished(tmp_path / "run")
    whole = (folder / "metrics.jsonl").read_text()
    (folder / "metrics.jsonl").write_text(f'{whole}[1]\n{{"kind": "step"}}\n"x"\n{whole[:30]}')
    for name in ("config", "environment", "model", "evaluation"):
        (folder / f"{name}.json").write_text("{")
    run = reading.read(folder)
    assert (run.config, run.environment, run.evaluation) == ({}, {}, {})
    assert (len(run.steps), len(run.epochs)) == (6, 3)
    assert "<h2>Loss and metrics</h2>" in html_of(folder)


@pytest.mark.parametrize("value", [[], 3, "x", None, {"a": 1}, [1, 2], [[1]], True])
def test_files_with_other_things_in_them_are_no_error(tmp_path, value):
    folder = run_folders.finished(tmp_path / "run")
    for name in ("config", "environment", "result", "evaluation"):
        (folder / f"{name}.json").write_text(json.dumps(value))
        html_of(folder)
    for key in ("classes", "confusion", "worst", "best", "examples", "steps"):
        (folder / "evaluation.json").write_text(json.dumps({**EVALUATION, key: value}))
        html_of(folder)
    for name, keys in (
        ("config", ("recipe", "settings", "options", "model")),
        ("result", ("status", "steps", "epochs", "devices", "dataset", "examples_per_second")),
        ("environment", ("time", "devices", "packages", "git", "earlier")),
    ):
        for key in keys:
            (folder / f"{name}.json").write_text(json.dumps({"status": "finished", key: value}))
            html_of(folder)


def test_values_that_are_not_finite(tmp_path):
    folder = run_folders.write(tmp_path / "run", config={"recipe": "a"})
    (folder / "metrics.jsonl").write_text(
        '{"kind": "step", "step": 1, "loss": NaN, "examples_per_second": null}\n'
        '{"kind": "epoch", "step": 1, "epoch": 1, "loss": 0.5, "val_loss": null}\n'
        '{"kind": "epoch", "step": 2, "epoch": 2, "loss": Infinity, "val_loss": 0.25}\n'
        '{"kind": "epoch", "step": 3, "epoch": 3, "loss": null, "val_loss": NaN, "f1": [0.5, 1]}\n'
    )
    run = reading.read(folder)
    assert run.best("loss") == reading.Best(0.5, 1)
    assert run.best("val_loss") == reading.Best(0.25, 2)
    assert run.best("f1") is None
    assert run.final == {"loss": None, "val_loss": None}
    text = html_of(folder)
    assert "nan" not in text.lower().replace("nance", "")
    assert "<tr><th>loss</th><td>–</td><td>0.5</td><td>1</td></tr>" in text


def test_a_metric_is_best_where_it_is_highest_or_lowest(tmp_path):
    logged = [
        {"kind": "epoch", "step": i, "epoch": i, "val_loss": loss, "val_accuracy": accuracy}
        for i, loss, accuracy in ((1, 3.0, 0.1), (2, 1.0, 0.4), (3, 2.0, 0.9), (4, 1.0, 0.2))
    ]
    run = reading.read(run_folders.write(tmp_path / "run", logged=logged))
    assert run.best("val_loss") == reading.Best(1.0, 2)
    assert run.best("val_accuracy") == reading.Best(0.9, 3)


def test_many_classes_are_drawn_and_their_mistakes_listed(tmp_path):
    size = confusion.MOST_COLUMNS + 1
    matrix = (np.eye(size, dtype=int) * 3).tolist()
    matrix[2][5] = 7
    names = [f"class {i}" for i in range(size)]
    evaluation = {**EVALUATION, "classes": names, "confusion": matrix, "is_whole": False}
    text = html_of(run_folders.finished(tmp_path / "run", evaluation=evaluation))
    assert text.count("<rect ") == size + 1
    assert '<rect x="5" y="2" width="1" height="1" fill-opacity="0.70">' in text
    assert "<td>class 2</td><td>class 5</td><td>7</td>" in text
    assert "The first 6 validation examples after step 6" in text
