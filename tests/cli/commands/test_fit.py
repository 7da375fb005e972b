"""`kerasdist fit`: what it prints, what a run leaves, and exit codes."""

import json
import os
import re
import signal
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest

from tests.cli.conftest import start
from tests.cli.test_run_callbacks import KILLER
from tests.conftest import Outcome


def test_fit_trains_a_recipe_and_leaves_its_folder(command, tiny):
    done = command("fit", "tiny", "--log-every", 2, "--units", 5)
    assert (done.code, done.err) == (0, "")
    run = Path("runs/tiny/0001")
    assert sorted(p.name for p in run.iterdir()) == [
        "best.keras",
        "checkpoints",
        "config.json",
        "environment.json",
        "evaluation.json",
        "final.keras",
        "lock",
        "metrics.jsonl",
        "model.json",
        "report.html",
        "result.json",
        "tensorboard",
    ]
    result = json.loads((run / "result.json").read_text())
    assert result["status"] == "finished"
    assert (result["steps"], result["epochs"], result["examples_seen"]) == (10, 2, 80)
    assert result["dataset"] == "recipe"
    assert result["devices"] == ["CPU:0"]
    assert {"loss", "mae", "val_loss", "val_mae", "weights_sha256"} < set(result)
    config = json.loads((run / "config.json").read_text())
    assert config["settings"]["units"] == 5
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [m["step"] for m in metrics if m["kind"] == "step"] == [2, 4, 6, 8, 10]
    assert [m["epoch"] for m in metrics if m["kind"] == "epoch"] == [1, 2]
    model = keras.models.load_model(run / "final.keras")
    assert model.hidden.kernel.shape == (4, 5)  # As it was built, not as the constructor's default.


def test_log_lines_have_the_old_format(command, tiny):
    lines = command("fit", "tiny", "--log-every", 1, "--steps", 4).lines
    assert lines[:5] == [
        "run        runs/tiny/0001",
        "data       40 examples (recipe), 40 examples for validation",
        "model      Tiny, 19 parameters (19 trainable)",
        "devices    1 x 8 = a global batch of 8 (CPU:0)",
        "precision  float32",
    ]
    lines = lines[4:]
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d: "
    loss = r"loss = \d+\.\d\d"
    # Nothing was measured yet: the first step compiles.
    assert re.fullmatch(rf"{stamp}step 1, {loss} \(the first step compiles: not timed\)", lines[1])
    speed = r"\(\d+\.\d examples/sec; \d+\.\d{3} sec/batch\)"
    for step in (2, 3, 4):
        assert re.fullmatch(rf"{stamp}step {step}, {loss} {speed}", lines[step])
    assert re.fullmatch(rf"{stamp}epoch 1, loss = .*, val_mae = [\d.]+", lines[5])
    assert re.fullmatch(r"finished  4 steps, 32 examples \([\d.,]+ examples/s\)", lines[6])
    assert re.fullmatch(r"final     loss = .*, val_mae = [\d.]+", lines[7])
    assert re.fullmatch(r"best      val_loss = [\d.]+ in epoch 1", lines[8])
    assert lines[9:] == [
        "folder    runs/tiny/0001: final.keras, best.keras, report.html",
        "evaluate  kerasdist evaluate runs/tiny/0001",
        "continue  kerasdist fit runs/tiny/0001 --run-dir runs/tiny/0001 --steps 8",
    ]


def test_without_log_every_a_log_is_short_and_metrics_are_complete(command, tiny, monkeypatch):
    monkeypatch.setattr("kerasdist.cli.commands.fit.SECONDS_BETWEEN_STEPS", 1e9)
    done = command("fit", "tiny", "--steps", 40)
    steps = re.findall(r": step (\d+), ", done.out)
    assert steps == ["10"]
    assert len(re.findall(r": epoch \d+, ", done.out)) == 8
    logged = Path("runs/tiny/0001/metrics.jsonl").read_text().splitlines()
    found = [line["step"] for line in map(json.loads, logged) if line["kind"] == "step"]
    assert found == [10, 20, 30, 40]
    objects = command("fit", "tiny", "--steps", 40, "--json", "--no-resume").objects
    assert [e["step"] for e in objects if e["event"] == "step"] == [10, 20, 30, 40]


def test_json_prints_nothing_but_json_objects(command, tiny):
    done = command("fit", "tiny", "--json", "--log-every", 1, "--steps", 2)
    assert (done.code, done.err) == (0, "")
    assert [o["event"] for o in done.objects] == ["start", "step", "step", "epoch", "end"]
    start, first, second, _, end = done.objects
    assert start["run"] == end["run"] == "runs/tiny/0001"
    assert first["examples_per_second"] is None
    assert second["examples_per_second"] > 0
    assert end["status"] == "finished"


def test_a_run_knows_its_new_length(command, tiny):
    command("fit", "tiny", "--epochs", 1, "--run-dir", "mine", "--units", 5)
    before = json.loads(Path("mine/config.json").read_text())
    assert command("fit", "mine", "--run-dir", "mine", "--epochs", 3).code == 0
    config = json.loads(Path("mine/config.json").read_text())
    assert (config["settings"]["epochs"], config["options"]["epochs"]) == (3, 3)
    for each in (before, config):
        del each["settings"]["epochs"], each["options"]["epochs"]
    assert config == before
    done = command("fit", "mine", "--run-dir", "mine")
    assert done.out.startswith("run mine is finished")


def test_a_longer_run_that_is_killed_is_continued_by_the_same_command(command, tiny, tmp_path):
    command("fit", "tiny", "--epochs", 1, "--run-dir", "mine")
    (tiny / "callbacks.py").write_text(KILLER)
    longer = ("fit", "tiny", "--epochs", 3, "--run-dir", "mine", "--save-every", "epoch")
    with start(*longer, cwd=tmp_path) as process:
        assert process.wait(timeout=60) == -signal.SIGKILL
    assert command("runs", ".", "--json").objects[0]["status"] == "unfinished"
    done = command(*longer)
    assert "continuing after step" in done.out
    result = json.loads(Path("mine/result.json").read_text())
    assert (result["status"], result["epochs"]) == ("finished", 3)


def test_an_unfinished_run_with_other_settings_is_named(command, tiny):
    command("fit", "tiny", "--epochs", 1)
    os.remove("runs/tiny/0001/result.json")  # As after a kill.
    done = command("fit", "tiny", "--epochs", 1, "--units", 5)
    assert "runs/tiny/0001 is unfinished, but its settings or data were others (units)" in done.out
    assert "`--init-from runs/tiny/0001` begins with its weights" in done.out
    again = command("fit", "tiny", "--epochs", 1, "--units", 6)  # The newest run is finished.
    assert "unfinished" not in again.out
    assert "unfinished" not in command("fit", "tiny", "--epochs", 1, "--units", 6).out


def test_quiet_prints_nothing(command, tiny):
    assert command("fit", "tiny", "--quiet", "--epochs", 1) == Outcome(0, "", "")


def test_dry_run_keeps_nothing(command, tiny, tmp_path):
    before = sorted(p for p in tmp_path.rglob("*") if "__pycache__" not in p.parts)
    done = command("fit", "tiny", "--dry-run", "--run-dir", "mine")
    assert (done.code, done.err) == (0, "")
    assert sum("step" in line and "loss" in line for line in done.lines) == 2
    assert "nothing was kept" in done.lines[-1]
    assert sorted(p for p in tmp_path.rglob("*") if "__pycache__" not in p.parts) == before


def test_runs_are_numbered_and_a_config_json_runs_again(command, tiny):
    first = command("fit", "tiny", "--units", 2, "--steps", 3, "--seed", 4, "--json")
    config = "runs/tiny/0001/config.json"
    ended = command("fit", config, "--json")
    assert (ended.code, ended.objects[-1]["event"]) == (0, "finished")
    again = command("fit", config, "--no-resume", "--json")
    more = command("fit", "runs/tiny/0001", "--steps", 4, "--json")
    ends = [done.objects[-1] for done in (first, again, more)]
    assert [end["run"] for end in ends] == [f"runs/tiny/000{i}" for i in (1, 2, 3)]
    assert [end["steps"] for end in ends] == [3, 3, 4]
    assert ends[0]["weights_sha256"] == ends[1]["weights_sha256"] != ends[2]["weights_sha256"]
    contents = [json.loads(Path(end["run"], "config.json").read_text()) for end in ends]
    assert contents[0] == contents[1]


def test_a_run_from_before_jit_was_auto_is_the_same_run(command, tiny):
    command("fit", "tiny", "--steps", 1, "--quiet")
    config = Path("runs/tiny/0001/config.json")
    content = json.loads(config.read_text())
    assert content["options"]["jit"] == "auto"
    content["options"]["jit"] = "off"
    config.write_text(json.dumps(content))
    again = command("fit", "tiny", "--steps", 1, "--json")
    assert again.objects == [{"event": "finished", "run": "runs/tiny/0001"}]
    other = command("fit", "tiny", "--steps", 1, "--jit", "on", "--json")
    assert other.objects[-1]["run"] == "runs/tiny/0002"


def test_a_folder_that_is_not_empty_is_refused_and_left_as_it_is(command, tiny, tmp_path):
    kept = tmp_path / "mine"
    kept.mkdir()
    (kept / "thesis.txt").write_text("all my work")
    done = command("fit", "tiny", "--run-dir", "mine")
    assert done.code == 2
    assert "not empty" in done.err
    assert [p.name for p in kept.iterdir()] == ["thesis.txt"]
    assert (kept / "thesis.txt").read_text() == "all my work"


def test_a_usage_error_leaves_no_folder_behind(command, tiny, tmp_path):
    done = command("fit", "tiny", "--run-dir", "new/mine", "--devices", 2, "--shards", 3)
    assert done.code == 2
    assert "multiple of the number of devices" in done.err
    assert not (tmp_path / "new").exists()
    assert command("fit", "tiny", "--batch-size", 2, "--devices", 2, "--shards", 4).code == 2
    assert not list(tmp_path.glob("runs/tiny/*"))


def test_the_weights_of_a_model_that_keras_cannot_describe_are_kept(command, tiny):
    """Keras refuses to save a class whose constructor takes an object, after all the training."""
    model = (tiny / "model.py").read_text()
    model = model.replace("def __init__(self, units=3,", "def __init__(self, config, units=3,")
    (tiny / "model.py").write_text(model.replace("Tiny(config.units", "Tiny(config, config.units"))
    done = command("fit", "tiny", "--steps", 2)
    assert done.code == 0
    assert "only the weights" in done.out
    result = json.loads(Path("runs/tiny/0001/result.json").read_text())
    assert result["saved"] == "weights"
    evaluated = command("evaluate", "runs/tiny/0001", "--json")
    assert evaluated.objects[0]["loss"] == pytest.approx(result["val_loss"], rel=1e-6)
    with zipfile.ZipFile("runs/tiny/0001/final.keras") as archive:
        assert "model.weights.h5" in archive.namelist()


def test_a_diverged_run_exits_with_3(command, tiny):
    done = command("fit", "tiny", "--learning-rate", 1e30)
    assert done.code == 3
    assert "not finite" in done.err
    result = json.loads(Path("runs/tiny/0001/result.json").read_text())
    assert result["status"] == "diverged"
    assert command("evaluate", "runs/tiny/0001").code == 2


def test_a_provider_that_raises_exits_with_1_and_its_message(command, bare):
    done = command("fit", *bare, "--data.fail-at", 3, "--log-every", 1)
    assert done.code == 1
    assert "ValueError: batch 3 of x/*.wav is broken" in done.err
    assert "--debug" in done.err
    assert json.loads(Path("runs/Net/0001/result.json").read_text())["status"] == "failed"
    done = command("fit", *bare, "--data.fail-at", 3, "--debug")
    assert done.code == 1
    assert "get_batch_data" in done.err


def test_a_device_that_does_not_exist_exits_with_2_and_soft_placement_takes_the_nearest(
    command, tiny
):
    done = command("fit", "tiny", "--devices", "GPU:7")
    assert done.code == 2
    assert "no device 'GPU:7'" in done.err
    assert "CPU:0" in done.err
    assert "--soft-placement" in done.err
    done = command("fit", "tiny", "--devices", "GPU:1", "--soft-placement", "--dry-run", "--json")
    assert done.code == 0
    assert command("fit", "tiny", "--devices", "CPU:1", "--steps", 1).code == 0
    assert json.loads(Path("runs/tiny/0001/result.json").read_text())["devices"] == ["CPU:1"]


def test_ctrl_c_exits_with_130_and_tensorflow_says_nothing(tiny, tmp_path):
    """One process for both: it starts TensorFlow, on two devices, which says most."""
    arguments = ("fit", "tiny", "--epochs", 10**6, "--log-every", 1, "--devices", 2)
    with start(*arguments, cwd=tmp_path) as process:
        for line in process.stdout:
            if "step 3," in line:
                break
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    phases = [line for line in errors.splitlines() if " ..." in line]
    assert phases[0] == "kerasdist: starting TensorFlow ..."
    assert [line for line in errors.splitlines() if line not in phases] == [
        "kerasdist: interrupted"
    ]
    result = json.loads((tmp_path / "runs/tiny/0001/result.json").read_text())
    assert result["status"] == "interrupted"
    assert result["steps"] >= 2  # Step 3 was printed, and is written after that.


def test_a_bare_model_and_provider_train_with_their_arguments(command, bare):
    done = command("fit", *bare, "--model.filters", 7, "--model.rate", 0.5, "--json")
    assert (done.code, done.err) == (0, "")
    run = Path(done.objects[-1]["run"])
    assert run == Path("runs/Net/0001")
    config = json.loads((run / "config.json").read_text())
    assert config["model_arguments"] == {"filters": 7, "rate": 0.5}
    assert config["data_arguments"]["data_pattern"] == "x/*.wav"
    assert config["data_arguments"]["batch_size"] == 6
    assert done.objects[-1]["steps"] == 4
    assert done.objects[-1]["examples_seen"] == 24
    assert done.objects[-1]["dataset"] == "provider"

    again = command("fit", run / "config.json", "--no-resume", "--json")
    assert again.objects[-1]["weights_sha256"] == done.objects[-1]["weights_sha256"]

    assert command("evaluate", run).code == 2
    evaluated = command("evaluate", run, "--split", "train", "--json")
    assert np.isfinite(evaluated.objects[0]["loss"])


def test_a_required_argument_that_is_missing_exits_with_2(command, bare):
    files = bare[:4]
    done = command("fit", *files, "--batch-size", 6)
    assert done.code == 2
    assert "`--data.data-pattern` is missing" in done.err
    done = command("fit", *files, "--data.data-pattern", "x")
    assert done.code == 2
    assert "`--batch-size` is missing" in done.err


def test_a_run_is_saved_when_its_reader_leaves(command, tmp_path, tiny):
    """`fit | head`, or `fit | tee log` after Ctrl-C, which ends `tee`, too."""
    options = ("fit", "tiny", "--epochs", 400, "--log-every", 1, "--run-dir", "run")
    with start(*options, cwd=tmp_path) as process:
        for line in process.stdout:
            if "step 3," in line:
                break
        process.stdout.close()
        told = process.stderr.read()
    assert process.returncode == 1
    assert told.splitlines()[-1] == (
        "kerasdist: stopped, because the reader of its output was closed"
    )
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert (result["status"], result["error"]) == (
        "interrupted",
        "the reader of its output was closed",
    )
    assert 3 <= result["steps"] < 2000
    log = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    done = command(*options[:3], 1 + log[-1]["step"] // 5, *options[4:])
    assert f"continuing after step {result['steps']}" in done.out


def test_the_commands_that_are_suggested_work(command, tiny):
    """`evaluate` reads validation data: without any, it is not suggested."""
    (tiny / "data.py").write_text(
        (tiny / "data.py")
        .read_text()
        .replace("    random =", "    if split != 'train':\n        return None\n    random =")
    )
    done = command("fit", "tiny", "--epochs", 1)
    assert done.code == 0
    assert not any(line.startswith("evaluate ") for line in done.lines)
    again = command("fit", "tiny", "--epochs", 1).out
    assert "`--run-dir runs/tiny/0001` with more --epochs continues this one" in again
    more = command("fit", "tiny", "--epochs", 2, "--run-dir", "runs/tiny/0001")
    assert "continuing after step 5" in more.out


def test_a_run_is_saved_when_its_terminal_is_closed(tmp_path, tiny):
    """As when a connection breaks: SIGHUP, and nothing can be written any more."""
    ours, theirs = os.openpty()
    pipes = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    # The tests may run with `nohup`.
    pipes["preexec_fn"] = lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL)
    options = ("fit", "tiny", "--epochs", 4000, "--run-dir", "run")
    with start(*options, cwd=tmp_path, **pipes) as process:
        os.close(theirs)
        seen = b""
        while b"epoch 3/4000" not in seen:
            seen += os.read(ours, 4096)
        os.close(ours)
        process.send_signal(signal.SIGHUP)
    assert process.returncode == 129
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert (result["status"], result["error"]) == ("interrupted", "SIGHUP")
    assert (tmp_path / f"run/checkpoints/step-{result['steps']:08}").is_dir()
