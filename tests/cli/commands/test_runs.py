"""`kerasdist runs`: lists runs, compares them, and writes a page about that."""

import os
import re
import resource
import shutil
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.cli import main
from kerasdist.reports import comparison
from kerasdist.runs import reading
from kerasdist.runs.checkpoints import Store
from kerasdist.runs.lock import RunLock
from tests import run_folders
from tests.reports.browser import Seen, needs_chromium


def at(hour):
    return {**run_folders.ENVIRONMENT, "time": f"2026-11-16T{hour:02d}:00:00+00:00"}


@pytest.fixture
def runs(command, tmp_path):
    """Three runs: the oldest is the last by name."""
    folder = tmp_path / "runs"
    settings = {"units": 8, "rate": 0.1}
    run_folders.finished(folder / "b/0001", environment=at(8), settings=settings)
    run_folders.finished(
        folder / "a/0001",
        environment={**at(9), "devices": ["CPU:0", "CPU:1"]},
        settings={**settings, "units": 16},
        num_epochs=5,
        loss=0.5,
    )
    result = {"status": "diverged", "steps": 4, "error": "not finite", "dataset": "files"}
    run_folders.write(
        folder / "a/0002",
        logged=run_folders.lines(2),
        environment=at(10),
        config={"recipe": "mine/audio", "options": {"monitor": "val_accuracy"}},
        result=result,
    )
    return folder


def test_the_list_has_the_newest_run_last(command, runs):
    done = command("runs")
    assert (done.code, done.err) == (0, "")
    rows = [re.split(r"  +", line) for line in done.lines]
    assert rows == [
        ["run", "status", "name", "epochs", "steps", "metrics", "examples/s", "started"],
        [
            *("runs/b/0001", "finished", "cifar10", "3", "6"),
            *("val_loss=0.1767 val_accuracy=0.8433", "123", "2026-11-16 08:00"),
        ],
        [
            *("runs/a/0001", "finished", "cifar10", "5", "10"),
            *("val_loss=0.06 val_accuracy=0.96", "123", "2026-11-16 09:00"),
        ],
        [
            *("runs/a/0002", "diverged", "audio", "2", "4"),
            *("val_loss=0.26 val_accuracy=0.76", "50", "2026-11-16 10:00"),
        ],
    ]


def test_a_narrow_terminal_gets_whole_lines(command, runs, monkeypatch):
    whole = command("runs").lines[0].split()
    least = ["examples/s", "name", "steps", "epochs"]
    for width, missing in ((140, []), (100, ["examples/s"]), (80, least)):
        monkeypatch.setattr("sys.stdout.isatty", lambda: True)
        monkeypatch.setenv("COLUMNS", str(width))
        lines = command("runs").lines
        assert lines[0].split() == [name for name in whole if name not in missing]
        assert len(lines) == 4
        assert max(map(len, lines)) <= width


def test_a_list_in_json_has_an_object_a_line(command, runs):
    first, second, third = command("runs", runs, "--json").objects
    assert first["run"] == str(runs / "b/0001")
    assert second == {
        "run": str(runs / "a/0001"),
        "status": "finished",
        "name": "cifar10",
        "dataset": "files",
        "epochs": 5,
        "steps": 10,
        "metrics": {"loss": 0.05, "accuracy": 0.95, "val_loss": 0.060000000000000005}
        | {"val_accuracy": 0.96},
        "monitor": "val_loss",
        "best": {"value": 0.060000000000000005, "epoch": 5},
        "examples_per_second": 123.4,
        "devices": ["CPU:0"],
        "started": "2026-11-16T09:00:00+00:00",
    }
    assert (third["monitor"], third["best"]) == ("val_accuracy", {"value": 0.76, "epoch": 2})


def test_the_best_epoch_is_found_in_a_long_log(command, tmp_path):
    logged = list(run_folders.lines(1)) + list(run_folders.lines(3000))[3:]
    logged[2] |= {"val_loss": -1.0}
    assert len(logged) > 8000
    run_folders.write(tmp_path / "run", logged=logged)
    (found,) = command("runs", "run", "--json").objects
    assert found["best"] == {"value": -1.0, "epoch": 1}
    assert (found["epochs"], found["steps"]) == (3000, 6000)


def test_only_runs_are_listed(command, tmp_path):
    run_folders.finished(tmp_path / "runs/a/0001")
    run_folders.finished(tmp_path / "runs/a/0001/export/inside")  # not a run of its own
    run_folders.finished(tmp_path / "runs/.hidden/0001")
    run_folders.finished(tmp_path / "elsewhere/0001")
    run_folders.finished(tmp_path / "runs/1/2/3/4/5/6/deep")
    (tmp_path / "runs/link").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "runs/foreign").mkdir()
    (tmp_path / "runs/foreign/config.json").write_text('{"of": "another program"}')
    found = command("runs", "--json").objects
    assert [each["run"] for each in found] == ["runs/a/0001"]
    assert [each["run"] for each in command("runs", "elsewhere", "--json").objects] == [
        "elsewhere/0001"
    ]


def test_a_run_that_somebody_trains_is_running(command, tmp_path):
    folder = run_folders.write(tmp_path / "runs/a/0001", logged=run_folders.lines(1))
    assert command("runs", "--json").objects[0]["status"] == "unfinished"
    (folder / "result.json").write_text('{"status": "interrupted"}')
    with RunLock(folder):
        before = (folder / "lock").read_bytes()
        assert command("runs", "--json").objects[0]["status"] == "running"
        assert (folder / "lock").read_bytes() == before
    assert command("runs", "--json").objects[0]["status"] == "interrupted"


def test_where_there_are_no_runs_it_says_so(command, tmp_path):
    done = command("runs")
    assert (done.code, done.out) == (0, "no runs in runs\n")
    assert not (tmp_path / "runs").exists()
    (tmp_path / "empty").mkdir()
    assert command("runs", "empty").out == "no runs in empty\n"
    assert command("runs", "empty", "--json").out == ""


def test_two_runs_are_compared(command, runs):
    done = command("runs", "runs/b/0001", "runs/a/0001")
    assert (done.code, done.err) == (0, "")
    rows = [re.split(r"  +", line) for line in done.lines]
    assert rows == [
        ["metric (* the best)", "b/0001", "a/0001"],
        ["status", "finished", "finished"],
        ["epochs", "3", "5"],
        ["steps", "6", "10"],
        ["loss", "0.1667", "0.05 *"],
        ["accuracy", "0.8333", "0.95 *"],
        ["val_loss", "0.1767", "0.06 *"],
        ["val_accuracy", "0.8433", "0.96 *"],
        ["examples/s", "123", "123"],
        [""],
        ["setting that differs", "b/0001", "a/0001"],
        ["epochs", "3", "5"],
        ["units", "8", "16"],
        ["devices used", "CPU:0", "CPU:0, CPU:1"],
    ]


def test_a_comparison_in_json_has_the_settings_that_differ(command, runs):
    first, second = command("runs", "runs/b/0001", "runs/a/0001", "--json").objects
    assert first["settings"] == {"epochs": 3, "units": 8, "devices used": ["CPU:0"]}
    assert second["settings"]["units"] == 16
    assert second["metrics"]["val_accuracy"] == 0.96


def test_a_run_and_itself_differ_in_nothing(command, runs):
    done = command("runs", "runs/b/0001", "runs/b/0001")
    assert done.lines[-1] == "no setting differs"
    assert "*" not in "".join(done.lines[1:])


def trained(folder, rate=0.1, units=4, optimizer=keras.optimizers.SGD, scale=1.0, **options):
    """A run of a Python program."""
    x = np.arange(48, dtype="float32").reshape(16, 3) * scale / 48
    layers = [keras.layers.Dense(units), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
    model = keras.Sequential([keras.Input((3,)), *layers])
    model.compile(optimizer(rate), "mse")
    options = {"batch_size": 8, "seed": 0, **options}
    kerasdist.fit(model, x, x[:, :1], epochs=1, run_dir=folder, verbose=0, **options)


def compared(command, *runs):
    """The rows below "setting that differs"."""
    rows = [re.split(r"  +", line) for line in command("runs", *runs).lines]
    starts = [i for i, row in enumerate(rows) if row[0] == "setting that differs"]
    return {row[0]: row[1:] for row in rows[starts[0] + 1 :]} if starts else {}


def test_what_python_programs_chose_is_compared(command, tmp_path):
    trained("runs/a")
    trained("runs/b", 0.01, 5, clip_norm=1.0, deterministic=True)
    assert compared(command, "runs/a", "runs/b") == {
        "learning_rate": ["0.1", "0.01"],
        "shards": ["1", "4"],
        "deterministic": ["no", "yes"],
        "clip_norm": ["–", "1"],
        "layer Dense units": ["4", "5"],
    }
    first, second = command("runs", "runs/a", "runs/b", "--json").objects
    assert (first["settings"]["learning_rate"], second["settings"]["learning_rate"]) == (0.1, 0.01)
    assert command("runs", "runs/a", "runs/b", "--html", "page.html").code == 0
    page = (tmp_path / "page.html").read_text()
    assert "<tr><th>learning_rate</th><td>0.1</td><td>0.01</td></tr>" in page


def test_another_optimizer_or_other_data_of_python_programs_are_told(command):
    trained("runs/a")
    trained("runs/b", optimizer=keras.optimizers.Adam)
    trained("runs/c", scale=2.0)
    found = compared(command, "runs/a", "runs/b")
    assert found == {"optimizer": ["SGD", "Adam"]}
    assert list(compared(command, "runs/a", "runs/c")) == ["data (fingerprint)"]
    trained("runs/d")
    assert command("runs", "runs/a", "runs/d").lines[-1] == "no setting differs"


def test_a_program_without_a_checkpoint_is_said_to_be_unknown(command, tmp_path):
    trained("runs/a")
    trained("runs/b", 0.01, batch_size=4)
    shutil.rmtree("runs/b/checkpoints")
    told = (
        "The settings of the program of b are not recorded: there is no checkpoint that can be "
        "read."
    )
    done = command("runs", "runs/a", "runs/b", "--html", "page.html")
    assert told in done.lines
    assert compared(command, "runs/a", "runs/b") == {"batch_size": ["8", "4"]}
    assert told in (tmp_path / "page.html").read_text()
    shutil.rmtree("runs/a/checkpoints")
    assert command("runs", "runs/a", "runs/a").lines[-1].startswith("The settings of the program")


def test_a_program_and_a_recipe_are_compared(command, runs):
    trained("runs/c", clip_norm=1.0)
    found = compared(command, "runs/b/0001", "runs/c")
    assert found["recipe"] == ["cifar10", "–"]
    assert found["units"] == ["8", "–"]
    # The folder of the recipe has no checkpoint, so nobody knows whether these differ.
    assert not {"clip_norm", "layer Dense units"} & found.keys()


def test_whatever_lies_in_the_place_of_checkpoints_a_comparison_is_made(command, tmp_path):
    trained("runs/a")
    trained("runs/b")
    shutil.move("runs/b/checkpoints", "elsewhere")
    (tmp_path / "runs/b/checkpoints").symlink_to(tmp_path / "elsewhere")
    trained("runs/c")
    store = Store("runs/c/checkpoints")
    identity = {"layers": [1], "model": 3, "schedule": None}
    store.save(9, {}, {"identity": identity})
    assert command("runs", "runs/a", "runs/b", "runs/c").code == 0
    store.save(10, {}, {"identity": ["nothing"]})
    assert command("runs", "runs/a", "runs/c").code == 0


def test_a_page_compares_the_curves(command, runs, tmp_path):
    done = command("runs", "runs/b/0001", "runs/a/0001", "runs/a/0002", "--html", "page.html")
    assert (done.code, done.err) == (0, "")
    assert done.lines[-1] == "comparison: page.html"
    text = (tmp_path / "page.html").read_text()
    assert re.findall(r"<h2>(.*?)</h2>", text) == [
        "Runs",
        "Final metrics",
        "Curves",
        "Settings that differ",
    ]
    loss = text[text.index("<figcaption>val_loss<") :]
    loss = loss[: loss.index("</figure>")]
    titles = re.findall(r"<title>(.*?)</title>", loss)
    # Of each run all its epochs, in one plot.
    assert [title.partition(":")[0] for title in titles] == (
        ["b/0001"] * 3 + ["a/0001"] * 5 + ["a/0002"] * 2
    )
    assert titles[3] == "a/0001: 0.26 at 2"
    assert [f'class="dot c{i}"' in loss for i in range(4)] == [True, True, True, False]
    assert '<tr><th>val_loss</th><td>0.1767</td><td class="best">0.06</td><td>0.26</td>' in text
    assert "<tr><th>units</th><td>8</td><td>16</td><td>–</td></tr>" in text
    assert "<th>rate</th>" in text  # The third run has none.


def test_a_page_without_a_name_has_one(command, runs, tmp_path):
    for line in ("runs --html", "runs/a/0001 runs/b/0001 --html", "--html --quiet runs"):
        assert command("runs", *line.split()).code == 0
        assert (tmp_path / "comparison.html").is_file()
        (tmp_path / "comparison.html").unlink()


def test_a_page_of_ours_is_written_again_and_nothing_else(command, runs, tmp_path):
    assert command("runs", "--html", "page.html").code == 0
    assert command("runs", "--html", "page.html").code == 0
    (tmp_path / "thesis.html").write_text("<p>mine</p>")
    done = command("runs", "--html", "thesis.html")
    assert done.code == 2
    assert "Received `--html thesis.html`, which is a file that kerasdist did not" in done.err
    assert (tmp_path / "thesis.html").read_text() == "<p>mine</p>"


def test_nothing_from_users_is_html(command, tmp_path):
    bad = "<script>alert(1)<"
    for name, units in (("<script>a", 1), ("<script>b", 2)):
        run_folders.finished(
            tmp_path / "runs" / name, recipe=bad, settings={bad: bad * units, "units": units}
        )
    assert command("runs", "--html", "page.html").code == 0
    text = (tmp_path / "page.html").read_text()
    assert text.count("<script") == 1  # Its own, for hover values.
    assert "&lt;script&gt;a" in text


@pytest.mark.parametrize(
    ("line", "parts"),
    [
        ("rus", ["'rus' does not exist", "Did you mean 'runs'?"]),
        ("runs/a/0001 runs/a/0003", ["'runs/a/0003' does not exist", "Did you mean '000"]),
        ("runs runs/a/0001", ["'runs' is not a run", "`kerasdist runs` lists all runs"]),
        ("--htlm x", ["Unknown option '--htlm'", "Did you mean '--html'?"]),
        ("runs --html runs", ["`--html runs`, which is a folder", "for example comparison.html"]),
        ("runs --html no/page.html", ["`--html no/page.html`, which cannot be written: No such"]),
        ("empty --html", ["Received `--html` for 0 runs", "Expected 1 to 24"]),
    ],
)
def test_errors_say_what_to_do(command, runs, tmp_path, line, parts):
    (tmp_path / "empty").mkdir()
    done = command("runs", *line.split())
    assert done.code == 2
    assert done.out == ""
    assert all(part in done.err for part in parts), done.err


def test_lines_of_many_runs_can_be_told_apart(tmp_path):
    folders = [run_folders.finished(tmp_path / f"{i:02d}") for i in range(comparison.MOST_RUNS)]
    text = comparison.render([reading.read(folder) for folder in folders])
    loss = text[text.index("<figcaption>loss<") :]
    kinds = re.findall(r'<path class="line (c\d d\d)"', loss[: loss.index("</figure>")])
    assert len(kinds) == len(set(kinds)) == comparison.MOST_RUNS


def test_help_shows_the_command(command):
    assert "runs [DIR]" in command("--help").out
    assert "--html" in command("runs", "--help").out


def test_it_answers_within_half_a_second_and_without_tensorflow(command, runs):
    """In the processor's time: other tests may have the machine to themselves meanwhile."""
    for i in range(50):
        run_folders.finished(runs / f"many/{i:04d}", num_epochs=100)
    program = (
        "import sys\nfrom kerasdist.cli.main import main\n"
        "code = main(['runs'])\n"
        "print(code, {'tensorflow', 'keras', 'numpy'} & set(sys.modules))"
    )
    variables = {k: v for k, v in os.environ.items() if k != "KERASDIST_LOGICAL_CPUS"}
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(
            [sys.executable, "-c", program], env=variables, capture_output=True, text=True
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.stdout.splitlines()[-1] == "0 set()", done.stderr
        assert len(done.stdout.splitlines()) == 1 + 53 + 1
        seconds.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if seconds[-1] < 0.5:
            return
    pytest.fail(f"took {seconds} seconds")


@needs_chromium
def test_the_comparison_in_a_browser(runs, tmp_path):
    assert main.main(["runs", "--html", "page.html", "--quiet"]) == 0
    seen = Seen((tmp_path / "page.html").read_text(), tmp_path)
    assert seen.console == []
    assert seen.requests == []
    for width, measures in seen.measures.items():
        assert measures["overflow"] <= 0, width
        assert measures["sections"] == ["Runs", "Final metrics", "Curves", "Settings that differ"]
        assert len(measures["plots"]) == 5


@pytest.fixture
def mixed(command, tmp_path):
    """Two runs on real data, and one on synthetic data that looks best of all."""
    for name, loss in (("a", 1.0), ("b", 0.5), ("made-up", 0.01)):
        run_folders.finished(tmp_path / "runs" / name, loss=loss)
    path = tmp_path / "runs/made-up/result.json"
    path.write_text(path.read_text().replace('"dataset": "files"', '"dataset": "synthetic"'))
    return tmp_path / "runs"


def test_synthetic_runs_are_marked_in_the_list(command, mixed):
    lines = command("runs").lines
    assert [line for line in lines if "(synthetic)" in line] == [
        next(line for line in lines if line.startswith("runs/made-up (synthetic)")),
        "(synthetic): on synthetic data, which says nothing about real data",
    ]
    assert [each["dataset"] for each in command("runs", "--json").objects] == [
        *("files", "files", "synthetic")
    ]
    assert "(synthetic)" not in command("runs", "runs/a", "runs/b").out


def test_a_run_is_known_to_be_synthetic_while_it_trains(command, tmp_path):
    environment = {**run_folders.ENVIRONMENT, "dataset": "synthetic"}
    run_folders.write(tmp_path / "runs/a", environment=environment)
    assert "runs/a (synthetic)" in command("runs").out


def test_synthetic_runs_are_not_ranked_against_others(command, mixed):
    done = command("runs", "runs/a", "runs/b", "runs/made-up", "--html", "page.html")
    (row,) = (line for line in done.lines if line.startswith("val_accuracy"))
    assert re.split(r"  +", row) == ["val_accuracy", "0.8433", "0.9267 *", "1.008"]
    assert comparison.UNRANKED in done.out
    page = (mixed.parent / "page.html").read_text()
    assert comparison.UNRANKED in page
    assert '<td class="best">0.9267</td><td>1.008</td>' in page
    assert page.count("synthetic data</span>") == 1


def test_synthetic_runs_are_ranked_among_themselves(command, mixed):
    for name in ("a", "b"):
        path = mixed / name / "result.json"
        path.write_text(path.read_text().replace('"dataset": "files"', '"dataset": "synthetic"'))
    done = command("runs", "runs/a", "runs/b", "runs/made-up")
    assert "1.008 *" in done.out
    assert comparison.UNRANKED not in done.out


def test_a_run_on_own_data_has_the_name_of_the_data(command, tmp_path):
    config = {"recipe": "template:image", "name": "photos", "settings": {}}
    run_folders.write(tmp_path / "runs/photos/0001", config=config)
    done = command("runs", tmp_path / "runs")
    assert "photos" in done.lines[1].split()[2:]
    assert "template:image" not in done.out


def test_names_that_the_terminal_cannot_show_are_no_error(tmp_path):
    run_folders.finished(tmp_path / "runs/猫/0001")
    variables = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    command = [sys.executable, "-m", "kerasdist", "runs", tmp_path / "runs"]
    done = subprocess.run(command, capture_output=True, text=True, env=variables)
    assert (done.returncode, done.stderr) == (0, "")
    assert "\\u732b/0001" in done.stdout


def test_a_start_is_shown_in_the_time_zone_of_this_machine(command, runs, monkeypatch):
    """As the lines of `fit` are. --json has the zone with it."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    try:
        assert "2026-11-16 13:30" in command("runs", runs).out  # 08:00 UTC
        assert command("runs", runs, "--json").objects[0]["started"] == at(8)["time"]
        assert "2026-11-16 13:30" in comparison.render([reading.read(runs / "b/0001")])
    finally:
        monkeypatch.undo()
        time.tzset()
    odd = run_folders.write(runs / "odd", environment={"time": "yesterday"})
    assert reading.read(odd).started_here == "yesterday"


def test_of_a_very_long_setting_the_beginning_is_shown(command, tmp_path):
    """What is learnt from texts holds thousands of words."""
    words = [[f"word{i + first}" for i in range(20_000)] for first in (0, 1)]
    for name, own in zip("ab", words, strict=True):
        run_folders.finished(tmp_path / name, settings={"schema": {"words": own}})
    found = command("runs", "a", "b")
    assert "word0" in found.out
    assert "(the rest is in config.json)" in found.out
    assert len(found.out) < 5000
    assert len(comparison.render([reading.read(tmp_path / name) for name in "ab"])) < 50_000
    assert command("runs", "a", "b", "--json").objects[1]["settings"]["schema"]["words"] == words[1]
