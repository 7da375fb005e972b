"""The callbacks of a recipe, and `--patience`."""

import json
import signal
from pathlib import Path

import keras
import numpy as np
import pytest

from kerasdist.cli.run_callbacks import early_stopping
from tests.cli.conftest import start

HALVING = """
import keras


def build_callbacks(config):
    rates = keras.callbacks.LearningRateScheduler(lambda epoch: config.learning_rate / 2**epoch)
    return [rates, keras.callbacks.CSVLogger("log.csv")]
"""
# Kills the process once, when its third epoch begins.
KILLER = """
import os
import signal
from pathlib import Path

import keras


class Killer(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 2 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)


def build_callbacks(config):
    return Killer()
"""


# Presses Ctrl-C after a step that is not in the log.
INTERRUPTER = """
import os
import signal

import keras


class Interrupter(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            os.kill(os.getpid(), signal.SIGINT)


def build_callbacks(config):
    return Interrupter()
"""


# Presses Ctrl-C when the training has ended, and its last checkpoint is saved.
LATE = INTERRUPTER.replace("on_train_batch_end(self, batch, ", "on_train_end(self, ").replace(
    "if batch == 2", "if True"
)


def result(run="runs/tiny/0001"):
    return json.loads((Path(run) / "result.json").read_text())


@pytest.mark.parametrize("part", ["callbacks", "model"])
def test_a_recipe_gives_callbacks(part, command, tiny):
    path = tiny / f"{part}.py"
    path.write_text((path.read_text() if path.exists() else "") + HALVING)
    done = command("fit", "tiny", "--learning-rate", 0.25, "--epochs", 3)
    assert (done.code, done.err) == (0, "")
    rows = Path("log.csv").read_text().splitlines()
    assert rows[0].split(",")[0] == "epoch"
    column = rows[0].split(",").index("learning_rate")
    assert [float(row.split(",")[column]) for row in rows[1:]] == [0.25, 0.125, 0.0625]


def test_a_dry_run_calls_no_callbacks(command, tiny):
    (tiny / "callbacks.py").write_text(HALVING)
    assert command("fit", "tiny", "--dry-run").code == 0
    assert not Path("log.csv").exists()


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def build_callbacks(config):\n    return [3]", "`build_callbacks` of the recipe: Rec"),
        ("", "has no function `build_callbacks` in its callbacks.py"),
    ],
)
def test_wrong_callbacks_are_refused(source, message, command, tiny):
    (tiny / "callbacks.py").write_text(source)
    done = command("fit", "tiny")
    assert done.code == 2
    assert message in done.err
    assert not Path("runs").exists()


def test_patience_stops_early(command, tiny):
    # Without a learning rate no epoch is better than the first.
    done = command("fit", "tiny", "--learning-rate", 0.0, "--epochs", 9, "--patience", 2)
    assert done.code == 0
    assert result()["epochs"] == 3
    told = "stopped early: val_loss has not improved for 2 epochs after epoch 1"
    assert told in done.out
    assert Path("runs/tiny/0001/best.keras").exists()
    again = command("fit", "tiny", "--learning-rate", 0.0, "--epochs", 9, "--patience", 2)
    assert (
        "is finished. It stopped early: val_loss has not improved for 2 epochs after epoch 1. "
        "--no-resume starts a new run."
    ) in again.out
    longer = command(
        *("fit", "runs/tiny/0001", "--run-dir", "runs/tiny/0001", "--learning-rate", 0.0),
        *("--epochs", 12, "--patience", 2),
    )
    assert longer.code == 0
    assert told in longer.out
    for done_ in (done, longer):
        assert "new run   kerasdist fit runs/tiny/0001 --init-from runs/tiny/0001" in done_.out
        assert "continue  " not in done_.out
    report = Path("runs/tiny/0001/report.html").read_text()
    assert "--epochs 6" not in report
    assert "--init-from runs/tiny/0001" in report


def test_a_finished_run_that_stopped_early_is_not_said_to_continue(command, tiny):
    again = ("fit", "tiny", "--learning-rate", 0.0, "--epochs", 9, "--patience", 1)
    command(*again)
    line = command(*again).lines[-1]
    assert "stopped early: val_loss has not improved for 1 epoch" in line
    assert "more --epochs" not in line


def test_patience_does_not_stop_what_gets_better(command, tiny):
    done = command("fit", "tiny", "--epochs", 4, "--patience", 1, "--monitor", "loss")
    assert done.code == 0
    assert result()["epochs"] == 4
    assert "stopped early" not in done.out


def test_patience_watches_the_training_loss_without_validation(command, bare):
    done = command("fit", *bare, "--epochs", 9, "--patience", 2, "--model.rate", 1e-30)
    assert done.code == 0
    assert "stopped early: loss has not improved" in done.out


def test_the_direction_comes_from_the_metric_or_from_the_name_of_the_monitor():
    assert early_stopping(None, None, has_validation=True) is None
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=[keras.metrics.BinaryIoU(name="overlap")])
    model.evaluate(np.ones((4, 3)), np.ones((4, 1)), verbose=0)

    def mode(monitor):
        stop = early_stopping(3, monitor, has_validation=True)
        assert (stop.monitor, stop.patience) == (monitor or "val_loss", 3)
        assert not stop.restore_best_weights
        stop.set_model(model)
        stop.on_train_begin()
        return stop.mode

    assert [mode(name) for name in ("val_overlap", "val_accuracy")] == ["max", "max"]
    assert [mode(name) for name in (None, "val_quality")] == ["min", "min"]


def test_patience_goes_on_counting_after_a_kill(tmp_path, command, tiny):
    (tiny / "callbacks.py").write_text(KILLER)
    asked = ["fit", "tiny", "--learning-rate", 0.0, "--epochs", 9, "--patience", 3]
    asked += ["--save-every", "epoch"]
    with start(*asked, cwd=tmp_path) as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    done = command(*asked)
    assert done.code == 0
    # The first epoch is the best. Counted from the restart, there would be six.
    assert result()["epochs"] == 4


def test_a_run_from_before_patience_is_still_resumed(command, tiny):
    command("fit", "tiny", "--steps", 2)
    config = Path("runs/tiny/0001/config.json")
    saved = json.loads(config.read_text())
    del saved["options"]["patience"]
    config.write_text(json.dumps(saved))
    done = command("fit", "tiny", "--steps", 2)
    assert "is finished" in done.out
    assert not Path("runs/tiny/0002").exists()


def test_the_result_of_an_interrupted_run_counts_the_steps_that_its_message_counts(command, tiny):
    (tiny / "callbacks.py").write_text(INTERRUPTER)
    done = command("fit", "tiny")
    assert done.code == 130
    assert "saved after step 3; the same command continues" in done.out
    found = result()
    assert (found["status"], found["steps"]) == ("interrupted", 3)
    assert [path.name for path in Path("runs/tiny/0001/checkpoints").glob("step-*")] == [
        "step-00000003"
    ]


def test_an_interrupt_after_the_last_step_stops_the_command_and_the_run_is_finished(command, tiny):
    (tiny / "callbacks.py").write_text(LATE)
    assert command("fit", "tiny").code == 130
    assert result()["status"] == "finished"
    assert Path("runs/tiny/0001/final.keras").exists()
    assert "is finished" in command("fit", "tiny").out
