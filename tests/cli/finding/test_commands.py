"""`fit --find-lr` and `fit --find-batch-size`, as a person runs them."""

import contextlib
import json
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf

from kerasdist.cli.finding import batch_size, learning_rate
from kerasdist.cli.finding.batch_size import Trials
from kerasdist.cli.finding.trial import serve
from kerasdist.cli.fit_arguments import parse_fit
from kerasdist.errors import KerasdistError
from kerasdist.finders import host_memory
from kerasdist.finders.batch_search import Trial
from kerasdist.phases.phase import shown_by
from tests.classifier_recipe import write
from tests.own_data import write_images


def test_find_lr_shows_a_plot_and_the_command_and_keeps_no_run(tiny, command):
    done = command("fit", "tiny", "--find-lr", "--devices", "2", "--epochs", 3)
    assert done.code == 0
    assert done.err == ""
    assert all(len(line) <= 80 for line in done.lines if not line.startswith("train"))
    assert "step 10 of 100: learning rate" in done.out
    assert sum("*" in line for line in done.lines) > 3
    (line,) = [line for line in done.lines if line.startswith("suggestion")]
    rate = line.split()[1]
    assert 0.005 < float(rate) < 1  # It diverges from about 1 on.
    assert f"kerasdist fit tiny --devices 2 --epochs 3 --learning-rate {rate}" in done.out
    (now,) = [line for line in done.lines if line.startswith("now")]
    assert now.split()[1].rstrip(";") == "0.1"
    assert Path("find-lr/tiny.html").is_file()
    assert not Path("runs").exists()


def test_find_lr_of_a_recipe_without_such_a_setting(tmp_path, command):
    write(tmp_path / "classes")
    done = command("fit", "classes", "--find-lr", "--json")
    assert done.code == 0
    (found,) = done.objects
    assert found["command"] is None
    assert 1e-4 < found["suggestion"] < 1
    assert len(found["rates"]) == len(found["losses"]) == len(found["smoothed"])
    assert Path(found["plot"]).parent == learning_rate.FOLDER


def test_a_trial_answers(tiny, monkeypatch):
    monkeypatch.chdir(tiny.parent)
    said = []
    argv = ["tiny", "--quiet", "--batch-size", "20"]
    serve({"argv": argv, "batch_size": 20, "seconds": 0.05}, said.append)
    ready, trial = said
    assert (ready["title"], ready["examples"], ready["least"]) == ("tiny", 40, 1)
    assert not ready["is_gpu"]
    assert trial["trial"]["fits"]
    assert trial["trial"]["batch_size"] == 20
    assert trial["trial"]["examples_per_second"] > 0
    said.clear()
    serve({"argv": [*argv, "--shards", "0"], "batch_size": 20, "seconds": 0.05}, said.append)
    assert "`--shards 0`" in said[0]["error"]


def test_what_the_end_of_a_process_means():
    trials = Trials(["r"])
    assert trials._judged(8, [], "needs too much", 0, "").note == "needs too much"
    found = trials._judged(8, [], "", -signal.SIGABRT, "")
    assert (found.fits, found.note) == (False, "ended its process (SIGABRT)")
    with pytest.raises(KerasdistError, match="the recipe is broken"):
        trials._judged(8, [{"error": "the recipe is broken"}], "", 0, "")
    with pytest.raises(KerasdistError, match="failed with a batch of 8: NameError: x Correct"):
        trials._judged(8, [], "", 1, "Traceback\nNameError: x\n")


def test_a_process_that_takes_too_much_memory_is_stopped(monkeypatch):
    """As the kernel would stop it, but before others suffer."""
    hungry = "import sys, time; sys.stdin.readline(); x = bytearray(400 * 2**20); time.sleep(60)"
    popen = batch_size.subprocess.Popen
    monkeypatch.setattr(
        batch_size.subprocess,
        "Popen",
        lambda argv, **options: popen([sys.executable, "-c", hungry], **options),
    )
    monkeypatch.setattr(host_memory, "free", lambda: 200 * 2**20)
    trial = Trials(["r"]).attempt(8)
    assert (trial.fits, trial.note) == (False, "needs more than 0.16 GB of memory")


def test_trials_have_the_epochs_of_the_command(tmp_path, monkeypatch, capsys):
    """With smaller batches the recipe would choose fewer, and then nothing would be unfrozen."""
    monkeypatch.chdir(write_images(tmp_path / "photos", 30).parent)
    argv = ["photos", "--backbone", "mobilenet_v3_small", "--weights", "x", "--freeze", "50"]
    argv += ["--find-batch-size"]
    epochs = []

    def attempt(self, size):
        self.about = {"title": "photos", "devices": ["CPU:0"], "is_gpu": False}
        asked = parse_fit([*self._argv, "--batch-size", str(size)])
        epochs.append(asked.settings["epochs"])
        # The smallest is the fastest.
        return Trial(size, fits=size < 32, examples_per_second=100.0, seconds_per_step=1, memory=1)

    monkeypatch.setattr(Trials, "attempt", attempt)
    assert batch_size.find(parse_fit(argv), argv) == 0
    assert {*epochs} == {60}
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("train")]
    assert line.endswith("--freeze 50 --batch-size 8 --epochs 60")


LOADS = """

def load_initial(config, model):
    print("loads", len(model.weights))
    for weight in model.weights:
        weight.assign(weight * 0)
"""


@pytest.mark.parametrize("flags", [("--find-lr", "--json"), ("--dry-run", "--json")])
def test_a_trial_starts_from_the_weights_of_a_recipe(tiny, command, flags):
    with open(tiny / "model.py", "a") as file:
        file.write(LOADS)
    done = command("fit", "tiny", *flags)
    assert done.code == 0, done.err
    assert "loads 4" in done.out


@pytest.mark.parametrize("flag", ["--find-lr", "--dry-run"])
def test_a_trial_refuses_weights_as_the_training_does(tmp_path, command, flag):
    write_images(tmp_path / "photos", 2)
    options = ("--backbone", "mobilenet_v3_small", "--image-size", 32, "--weights", "nope.h5")
    done = command("fit", "photos", *options, "--freeze", flag)
    assert done.code == 2
    assert "nope.h5" in done.err


def test_a_trial_refuses_weights_in_its_own_process(tmp_path, monkeypatch):
    monkeypatch.chdir(write_images(tmp_path / "photos", 2).parent)
    said = []
    options = ["--backbone", "mobilenet_v3_small", "--image-size", "32", "--weights", "nope.h5"]
    argv = ["photos", "--quiet", "--batch-size", "2", *options]
    serve({"argv": argv, "batch_size": 2, "seconds": 0.05}, said.append)
    assert "nope.h5" in said[-1]["error"]


@pytest.mark.parametrize("flag", ["--find-lr", "--dry-run"])
def test_a_trial_reads_a_checkpoint_as_the_training_does(tiny, tmp_path, command, flag):
    """With the names of `--init-map`."""
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), keras.layers.Dense(1)])
    tf.train.Checkpoint(first=model.layers[0], last=model.layers[1]).write("old")
    Path("map.json").write_text(json.dumps({"nothing": "first"}))
    done = command("fit", "tiny", "--init-from", "old", "--init-map", "map.json", flag)
    assert done.code == 2
    assert "nothing" in done.err


@pytest.mark.slow
def test_find_batch_size_uses_a_process_for_each_trial(tiny, command):
    done = command("fit", "tiny", "--find-batch-size", "--json", "--devices", "2")
    assert done.code == 0
    (found,) = done.objects
    assert found["largest"] == 40
    assert [trial["batch_size"] for trial in found["trials"]] == [2, 4, 8, 16, 32, 40]
    assert found["ended"] == "the data has 40 examples"
    assert found["command"] == f"kerasdist fit tiny --devices 2 --batch-size {found['fastest']}"
    assert not Path("runs").exists()
    shown = command("fit", "tiny", "--find-batch-size", "--batch-size", 40, "--units", 4)
    assert "largest  40: larger ones were not used, because the data has 40" in shown.out
    assert "kerasdist fit tiny --units 4 --batch-size" in shown.out
    assert json.loads(json.dumps(found))["title"] == "tiny"


def test_a_terminal_shows_which_batch_is_tried(monkeypatch):
    seen = []

    class Display:
        begin = staticmethod(lambda phase: seen.append(phase.title))
        end = staticmethod(lambda phase: None)

    answers = ([{"trial": {"batch_size": 2048, "fits": True}}], "")
    monkeypatch.setattr(Trials, "_watch", lambda *_: answers)
    monkeypatch.setattr(
        batch_size, "_started", lambda *_: contextlib.nullcontext(SimpleNamespace(wait=lambda: 0))
    )
    with shown_by(Display()):
        assert Trials(["recipe"]).attempt(2048).fits
    assert seen == ["trying a batch of 2,048"]
