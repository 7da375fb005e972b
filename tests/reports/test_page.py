"""report.html: what it shows of a run's files, whole or broken, and how it looks in a browser."""

import base64
import doctest
import errno
import functools
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.cli import main
from kerasdist.cli.commands import fit as fit_module
from kerasdist.evaluation import examples
from kerasdist.reports import comparison, html, page, pictures, plots
from kerasdist.reports import live as reports
from kerasdist.runs import reading
from tests import classifier_recipe, run_folders

EVALUATION = {
    "examples": 6,
    "is_whole": True,
    "steps": 6,
    "classes": ["cat", "dog"],
    "confusion": [[2, 1], [0, 3]],
    "worst": [
        {"position": 4, "label": "cat", "answer": "dog", "probability": 0.875,
         "label_probability": 0.125, "loss": 2.0794, "png": None}
    ],
    "best": [
        {"position": 1, "label": "dog", "answer": "dog", "probability": 0.99,
         "label_probability": 0.99, "loss": 0.01, "png": None}
    ],
}  # fmt: skip


def html_of(folder):
    assert reports.write(folder)
    return (folder / "report.html").read_text()


def numbers(text):
    return [float(number) for number in re.findall(r"-?\d+\.?\d*", text)]


def dots(svg):
    found = re.findall(r'<circle class="dot c(\d)" cx="([\d.]+)" cy="([\d.]+)"', svg)
    return [(int(colour), float(x), float(y)) for colour, x, y in found]


# Plots.


def test_points_are_drawn_where_they_belong():
    svg = plots.plot([plots.Series("a", [(0, 0.0), (5, 50.0), (10, 100.0)])], label="a")
    # 400 by 230 with 50, 12, 10 and 34 around; 5 % of the values' range above and below.
    assert dots(svg) == [(0, 50.0, 187.5), (0, 219.0, 103.0), (0, 388.0, 18.5)]
    assert 'class="line c0 d0" d="M50.0 187.5L219.0 103.0L388.0 18.5"' in svg


def test_two_lines_share_their_axes():
    series = [plots.Series("a", [(0, 0.0)]), plots.Series("b", [(10, 100.0)], colour=1)]
    assert dots(plots.plot(series, label="ab")) == [(0, 50.0, 187.5), (1, 388.0, 18.5)]


def test_ticks_are_round_and_at_their_values():
    axis = plots.Axis(0.13, 0.97, begin=0, end=84)
    assert axis.ticks(6) == pytest.approx([0.2, 0.4, 0.6, 0.8])
    assert axis.at(0.55) == pytest.approx(42)
    svg = plots.plot([plots.Series("a", [(0, 0.0), (10, 100.0)])], label="a")
    # 40 of -5 to 105 is 45 / 110 of 186 above 196; letters are 4 lower.
    assert '<text x="44" y="123.9" class="end">40</text>' in svg


def test_a_wide_range_has_a_logarithmic_scale():
    svg = plots.plot([plots.Series("a", [(0, 1.0), (1, 100.0), (2, 10000.0)])], label="a")
    (_, _, low), (_, _, middle), (_, _, high) = dots(svg)
    assert middle == pytest.approx((low + high) / 2, abs=0.1)
    assert "logarithmic" in svg
    assert ">100<" in svg
    assert "logarithmic" not in plots.plot([plots.Series("a", [(0, 1.0), (1, 9.0)])], label="a")


def test_a_value_that_is_not_finite_is_a_gap():
    points = [(0, 1.0), (1, 2.0), (2, None), (3, 2.0), (4, 1.0)]
    svg = plots.plot([plots.Series("a", points)], label="a")
    (line,) = re.findall(r'class="line[^"]*" d="([^"]*)"', svg)
    assert [part.count("L") for part in line.split("M")] == [0, 1, 1]
    assert len(dots(svg)) == 4


@pytest.mark.parametrize("points", [[], [(1, None)], [(1, None), (2, None)]])
def test_nothing_is_drawn_of_nothing(points):
    assert plots.plot([plots.Series("a", points)], label="a") == ""


@pytest.mark.parametrize("value", [0.0, 3.0, -2.0, 1e-30, 1e30])
def test_a_single_value_is_a_dot_in_the_middle(value):
    svg = plots.plot([plots.Series("a", [(7, value)])], label="a")
    assert dots(svg) == [(0, 219.0, 103.0)]


def test_many_points_become_their_mean_and_their_range():
    points = [(float(i), float(i % 2)) for i in range(4000)]
    points[2005] = (2005.0, 9.0)
    thinned, ranges = plots.thin(points)
    assert len(thinned) == len(ranges) == plots.MOST_POINTS
    assert thinned[0] == (5.0, 0.5)
    assert ranges[0] == (5.0, 0.0, 1.0)
    assert ranges[200][2] == 9.0  # No spike is lost.
    assert thinned[200][1] == pytest.approx((5 - 1 + 9) / 10)
    assert 'class="range c0"' in plots.plot([plots.Series("a", points)], label="a")


# Pictures.


def decoded(png):
    return tf.io.decode_png(png, channels=0).numpy()


def test_pictures_hold_what_was_drawn():
    random = np.random.default_rng(0)
    grey = random.integers(0, 256, (5, 7), dtype=np.uint8)
    colour = random.integers(0, 256, (5, 7, 3), dtype=np.uint8)
    assert (decoded(pictures.png(grey))[..., 0] == grey).all()
    assert (decoded(pictures.of_image(colour)) == colour).all()
    assert (decoded(pictures.of_image(grey[..., None]))[..., 0] == grey).all()


def test_other_numbers_are_scaled():
    # From 0 to 1 as they are; everything else from the lowest to the highest.
    assert decoded(pictures.of_image(np.array([[0.2, 1.0]])))[0, :, 0].tolist() == [51, 255]
    assert decoded(pictures.of_image(np.array([[-3.0, 3.0]])))[0, :, 0].tolist() == [0, 255]
    assert decoded(pictures.of_image(np.full((1, 2), 7.0)))[0, :, 0].tolist() == [0, 0]
    assert decoded(pictures.of_image(np.array([[np.nan, 4.0]])))[0, :, 0].tolist() == [0, 255]


def test_frames_are_drawn_with_time_to_the_right_and_the_first_band_at_the_bottom():
    frames = np.zeros((3, 4), np.float32)  # three moments, four bands
    frames[2, 0] = 5.0
    picture = decoded(pictures.of_frames(frames)).astype(int).sum(axis=-1)
    assert picture.shape == (4, 3)
    assert np.unravel_index(picture.argmax(), picture.shape) == (3, 2)


def test_large_pictures_are_thinned():
    assert decoded(pictures.of_image(np.zeros((300, 500, 3), np.uint8))).shape == (75, 84, 3)


# What the page says.


def test_a_finished_run_has_all_its_sections(tmp_path):
    logged = run_folders.lines(3, learning_rate=0.1, input_wait=0.25)
    folder = run_folders.finished(tmp_path / "run", evaluation=EVALUATION)
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in logged))
    text = html_of(folder)
    headings = re.findall(r"<h2>(.*?)</h2>", text)
    assert headings == [
        "Summary",
        "Loss and metrics",
        "Learning rate and throughput",
        "Confusion matrix",
        "Worst and best examples",
        "Configuration",
        "Environment",
        "Commands",
    ]
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", text)
    assert captions == [
        "loss",
        "accuracy",
        "learning rate",
        "examples a second",
        "waiting for input, % of the time",
    ]
    assert '<span class="badge finished">finished</span>' in text
    assert "<span>best val_loss, of epoch 3</span><b>0.1767</b>" in text
    assert "<span>examples/s</span><b>123</b>" in text
    assert "<tr><th>val_accuracy</th><td>0.8433</td><td>0.8433</td><td>3</td></tr>" in text
    assert "<dt>git commit</dt><dd>0123456789ab (with changes)</dd>" in text
    assert "<dt>units</dt><dd>8</dd>" in text
    assert "answer <b class=\"wrong\">dog</b> 87.5%" in text  # fmt: skip
    assert f"kerasdist fit {folder}/config.json --run-dir {folder} --epochs 6" in text
    assert f"kerasdist evaluate {folder}" in text


def test_the_lines_are_those_of_the_logs(tmp_path):
    text = html_of(run_folders.finished(tmp_path / "run", num_epochs=2))
    loss = text[text.index("<figcaption>loss<") : text.index("<figcaption>accuracy<")]
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
    assert "best loss, of epoch 2" in text
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


def test_while_it_runs_it_is_running_whatever_an_earlier_result_says(tmp_path):
    folder = run_folders.finished(tmp_path / "run")
    reports.Live(folder).write()
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
        assert "<script" not in text
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


# Folders that are not whole.


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
    size = page.MOST_COLUMNS + 1
    matrix = (np.eye(size, dtype=int) * 3).tolist()
    matrix[2][5] = 7
    names = [f"class {i}" for i in range(size)]
    evaluation = {**EVALUATION, "classes": names, "confusion": matrix, "is_whole": False}
    text = html_of(run_folders.finished(tmp_path / "run", evaluation=evaluation))
    assert text.count("<rect ") == size + 1
    assert '<rect x="5" y="2" width="1" height="1" fill-opacity="0.70">' in text
    assert "<td>class 2</td><td>class 5</td><td>7</td>" in text
    assert "Of the first 6 validation examples after step 6" in text


# Writing.


def test_a_page_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    assert not reports.write(tmp_path / "gone")
    folder = run_folders.finished(tmp_path / "run")
    before = sorted(os.listdir(folder))

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    assert not reports.write(folder)
    assert sorted(os.listdir(folder)) == before  # No draft takes room.


def test_a_page_that_cannot_be_made_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "render", lambda run: 1 / 0)
    assert not reports.write(run_folders.finished(tmp_path / "run"))


def test_pages_during_a_run_take_next_to_none_of_its_time(tmp_path, monkeypatch):
    now = 0.0
    written = []

    def write(folder, status):
        nonlocal now
        now += 1.0  # A page takes a second, an epoch ten.
        written.append(now)
        return True

    monkeypatch.setattr(reports, "write", write)
    live = reports.Live(tmp_path, clock=lambda: now)
    for _ in range(1000):
        now += 10.0
        live.write()
    assert 40 <= len(written) <= 51


def test_reports_are_written_without_tensorflow():
    program = (
        "import sys, kerasdist.reports.live, kerasdist.cli.commands.runs\n"
        "print({'tensorflow', 'keras', 'numpy', 'rich'} & set(sys.modules))"
    )
    variables = {k: v for k, v in os.environ.items() if k != "KERASDIST_LOGICAL_CPUS"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True
    )
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.parametrize("module", [reports, html, plots, comparison], ids=lambda m: m.__name__)
def test_examples_of_docstrings_run(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0


# Of a training.


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A trained run of a classifier, with averaged weights."""
    folder = tmp_path_factory.mktemp("report")
    recipe = classifier_recipe.write(folder / "small")
    path = folder / "run"
    options = ["--ema", "0.9", "--quiet", "--log-every", "2", "--run-dir", str(path)]
    assert main.main(["fit", str(recipe), *options]) == 0
    return path


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
    order = np.argsort(losses)
    names = ("low", "middle", "high")
    for kind, expected in (("worst", order[::-1][:8]), ("best", order[:8])):
        assert [e["position"] for e in found[kind]] == expected.tolist()
        for example, i in zip(found[kind], expected, strict=True):
            assert (example["label"], example["answer"]) == (names[labels[i]], names[answers[i]])
            assert example["loss"] == pytest.approx(losses[i], rel=1e-4)
            assert example["probability"] == pytest.approx(shares[i].max(), rel=1e-4)
            assert example["label_probability"] == pytest.approx(shares[i, labels[i]], rel=1e-4)
            picture = decoded(base64.b64decode(example["png"]))
            assert (picture == data["image"][i]).all()
    text = (run / "report.html").read_text()
    assert text.count("<img ") == 16
    assert "<h2>Confusion matrix</h2>" in text


def test_fit_says_where_its_report_is(run, command, tmp_path):
    recipe = classifier_recipe.write(tmp_path / "small")
    done = command("fit", recipe, "--epochs", 1)
    assert (done.code, done.err) == (0, "")
    assert any("runs/small/0001" in line and "report.html" in line for line in done.lines)


def test_examples_that_cannot_be_had_do_not_fail_a_run(command, tmp_path, monkeypatch):
    def broken(*_):
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

    monkeypatch.setattr(fit_module.api, "fit", stop)
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


# In a browser.

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="needs Chromium (Debian: apt-get install chromium)"
)
# What Chromium asks for itself, whatever the page is.
OWN_HOSTS = re.compile(
    r"(clients\d?|accounts|www|android\.clients|mtalk)\.google\.com"
    r"|(update|optimizationguide-pa|content-autofill|safebrowsing)\.googleapis\.com"
    r"|(redirector|edgedl\.me)\.gvt1\.com"
)
# Measures a page in frames of two widths, and writes what it finds where --dump-dom prints it.
HARNESS = """<!doctype html><link rel="icon" href="data:,"><title>measures</title><pre></pre>
<script>
const found = {};
for (const width of [400, 1280]) {
  const frame = document.createElement("iframe");
  frame.style.cssText = `width: ${width}px; height: 900px; border: 0`;
  frame.src = "page.html";
  frame.onload = () => {
    const inner = frame.contentDocument, root = inner.documentElement;
    const style = frame.contentWindow.getComputedStyle(inner.body);
    const text = inner.querySelector(".plot text");
    found[width] = {
      overflow: root.scrollWidth - width,
      sections: [...inner.querySelectorAll("h2")].map(e => e.textContent),
      ink: style.color, ground: style.backgroundColor,
      plots: [...inner.querySelectorAll(".plot")].map(e => e.getBoundingClientRect().width),
      letters: text ? text.getBoundingClientRect().height : null,
      pictures: [...inner.images].map(e => e.naturalWidth),
    };
    document.querySelector("pre").textContent = JSON.stringify(found);
  };
  document.body.append(frame);
}
</script>"""


class Seen:
    """What a browser asked for, said on its console, and measured."""

    def __init__(self, text, folder, dark=False):
        self.requests = []
        server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), functools.partial(Proxy, text, self.requests)
        )
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            # Every request to anywhere comes to the server above.
            done = subprocess.run(
                [
                    *(CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"),
                    *("--disable-background-networking", "--disable-component-update"),
                    *("--disable-sync", "--disable-dev-shm-usage", "--enable-logging=stderr"),
                    *(["--blink-settings=preferredColorScheme=0"] if dark else []),
                    f"--user-data-dir={folder / 'chromium'}",
                    f"--proxy-server=127.0.0.1:{server.server_port}",
                    *("--proxy-bypass-list=<-loopback>", "--virtual-time-budget=10000"),
                    *("--dump-dom", "http://report.test/harness.html"),
                ],
                capture_output=True,
                text=True,
                timeout=120,
            )
        finally:
            server.shutdown()
            server.server_close()
        self.console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
        found = re.search(r"<pre>(.*?)</pre>", done.stdout, re.DOTALL)
        assert found, done.stderr[-2000:]
        self.measures = json.loads(found[1].replace("&lt;", "<").replace("&amp;", "&"))


class Proxy(http.server.BaseHTTPRequestHandler):
    """Serves the page to a browser whose proxy it is, and notes everything else."""

    def __init__(self, text, requests, *args):
        self.pages = {"harness.html": HARNESS, "page.html": text}
        self.requests = requests
        super().__init__(*args)

    def do_GET(self):
        body = self.pages.get(self.path.removeprefix("http://report.test/"))
        host = re.sub(r"^http://([^/]*).*", r"\1", self.path)
        if body is None and not OWN_HOSTS.fullmatch(host):
            self.requests.append(self.path)
        content = (body or "").encode()
        self.send_response(404 if body is None else 200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_CONNECT(self):
        if not OWN_HOSTS.fullmatch(self.path.partition(":")[0]):
            self.requests.append(self.path)
        self.send_error(403)

    def log_message(self, *_):
        pass


def contrast(measures):
    """Of the text, as WCAG defines it."""

    def luminance(colour):
        parts = [value / 255 for value in numbers(colour)[:3]]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))

    ink, ground = luminance(measures["ink"]), luminance(measures["ground"])
    return (max(ink, ground) + 0.05) / (min(ink, ground) + 0.05)


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_report_in_a_browser(run, tmp_path, dark):
    copy = shutil.copytree(run, tmp_path / ("a" * 120))  # A long name does not widen it.
    settings = {"text": "x" * 300, "many": list(range(200))}
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps({**config, "settings": settings}))
    evaluation = json.loads((copy / "evaluation.json").read_text())
    evaluation["classes"] = [f"a class with a long name {i}" for i in range(page.MOST_COLUMNS)]
    evaluation["confusion"] = np.full((page.MOST_COLUMNS,) * 2, 1234).tolist()
    (copy / "evaluation.json").write_text(json.dumps(evaluation))
    seen = Seen(html_of(copy), tmp_path, dark)
    assert seen.console == []
    assert seen.requests == []
    for width, measures in seen.measures.items():
        assert measures["overflow"] <= 0, width
        assert measures["sections"] == [
            "Summary",
            "Loss and metrics",
            "Learning rate and throughput",
            "Confusion matrix",
            "Worst and best examples",
            "Configuration",
            "Environment",
            "Commands",
        ]
        assert len(measures["plots"]) >= 3
        assert all(300 <= size <= 600 for size in measures["plots"]), width
        assert measures["letters"] >= 10
        assert measures["pictures"] == [6] * 16
        assert contrast(measures) > 7
    is_dark = sum(numbers(seen.measures["400"]["ground"])[:3]) < 200
    assert is_dark == dark


@needs_chromium
def test_a_browser_notices_what_must_not_be(tmp_path):
    """The test above can fail."""
    text = (
        "<!doctype html><body style='width: 3000px'><h2>x</h2>"
        "<img src='https://example.invalid/a.png'><img src='http://example.invalid/b.png'>"
        "<script>undefinedName()</script>"
    )
    seen = Seen(text, tmp_path)
    assert any("undefinedName" in line for line in seen.console)
    assert {"example.invalid:443", "http://example.invalid/b.png"} <= set(seen.requests)
    assert seen.measures["400"]["overflow"] > 0
