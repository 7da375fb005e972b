"""The command line: exit codes, what is printed, and what a run leaves."""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
from conftest import Outcome

from kerasdist.cli import main

ROOT = Path(__file__).resolve().parents[2]
CONFIG = """
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Config:
    batch_size: int = field(default=8, metadata={"help": "examples of one step"})
    epochs: int = field(default=2, metadata={"help": "passes over the data"})
    units: int = field(default=3, metadata={"help": "width of the hidden layer"})
    learning_rate: float = field(default=0.1, metadata={"help": "step size"})
"""
DATA = """
import numpy as np


def build_data(config, split):
    random = np.random.default_rng(split == "train")
    x = random.normal(size=(40, 4)).astype("float32")
    return {"x": x, "y": x.sum(1, keepdims=True)}
"""
MODEL = '''
"""A tiny regression."""
import keras
import kerasdist


@keras.saving.register_keras_serializable("test_cli")
class Tiny(kerasdist.Model):
    features = "x"
    targets = "y"

    def __init__(self, units=3, learning_rate=0.1, **kwargs):
        super().__init__(**kwargs)
        self.hidden = keras.layers.Dense(units)
        self.out = keras.layers.Dense(1)
        self.learning_rate = learning_rate

    def call(self, x, training=False):
        return self.out(self.hidden(x))

    def defaults(self):
        sgd = keras.optimizers.SGD(self.learning_rate)
        return dict(optimizer=sgd, loss="mse", metrics=["mae"])


def build_model(config):
    return Tiny(config.units, config.learning_rate)
'''
# A model and an old-style provider in one file, without annotations as in 2017.
BARE = '''
import keras
import numpy as np
import kerasdist


class Net(kerasdist.Model):
    """A dense net.

    Args:
        filters: Units of the hidden layer,
            all alike.
        rate (float): Step size.
    """

    features = "image"
    targets = "label"

    def __init__(self, filters=4, rate: float | None = None):
        super().__init__()
        self.layers_ = [keras.layers.Dense(filters), keras.layers.Dense(3)]
        self.rate = rate

    def call(self, image, training=False):
        for layer in self.layers_:
            image = layer(image)
        return image

    def defaults(self):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        return dict(optimizer=keras.optimizers.SGD(self.rate or 0.1), loss=loss)


class Clips:
    def __init__(self, batch_size, data_pattern, fail_at=None, count: int = 4):
        """Reads clips.

        Args:
            data_pattern: Files to read.
        """
        self.batch_size = batch_size
        self.data_pattern = data_pattern
        self.fail_at, self.count, self.read = fail_at, count, 0

    def get_batch_data(self):
        self.read += 1
        if self.read == self.fail_at:
            raise ValueError(f"batch {self.read} of {self.data_pattern} is broken")
        if self.read > self.count:
            self.read = 0
            return None
        random = np.random.default_rng(self.read)
        return random.normal(size=(self.batch_size, 5)).astype("f"), np.arange(self.batch_size) % 3
'''


@pytest.fixture
def tiny(tmp_path):
    """A recipe of three small files."""
    folder = tmp_path / "tiny"
    folder.mkdir()
    for name, content in (("config", CONFIG), ("data", DATA), ("model", MODEL)):
        (folder / f"{name}.py").write_text(content)
    return folder


@pytest.fixture
def bare(tmp_path):
    """`--model FILE.py:Net --data FILE.py:Clips` with the arguments that have no default."""
    (tmp_path / "bare.py").write_text(BARE)
    files = ("--model", "bare.py:Net", "--data", "bare.py:Clips")
    return (*files, "--batch-size", 6, "--data.data-pattern", "x/*.wav")


def environment():
    """Without the variables that the tests set for themselves."""
    own = ("KERASDIST_LOGICAL_CPUS", "TF_CPP_MIN_LOG_LEVEL")
    return {k: v for k, v in os.environ.items() if k not in own}


def start(*argv, **options):
    command = [sys.executable, "-m", "kerasdist", *(str(a) for a in argv)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, env=environment(), **pipes, **options)


# Help, version and usage errors.


def test_the_module_and_the_script_are_the_same_command():
    script = Path(sys.executable).with_name("kerasdist")
    for argument in ("--help", "--version"):
        outputs = {
            subprocess.run(
                [*command, argument], env=environment(), capture_output=True, text=True, check=True
            ).stdout
            for command in ([sys.executable, "-m", "kerasdist"], [script])
        }
        assert len(outputs) == 1
        assert "kerasdist" in outputs.pop()


QUICK = {
    "--help": 0,
    "--version": 0,
    "help": 0,
    "fit --help": 0,
    "verify --help": 0,
    "evaluate --help": 0,
    "devices --help": 0,
    f"fit {ROOT}/recipes/cifar10 --help": 0,
    "fit cifar10 --help": 0,
    "fit --model broken.py:Net --data broken.py:Clips --help": 0,
    "ft": 2,
    "fit": 2,
    "fit --epochs 3": 2,
    "fit cifr10": 2,
    "fit cifar10 --lerning-rate 1": 2,
    "fit cifar10 extra": 2,
    "fit cifar10 --epochs abc": 2,
    "fit cifar10 --epochs 0": 2,
    "fit cifar10 --epochs": 2,
    "fit cifar10 --ema 1.5": 2,
    "fit cifar10 --clip-norm 0": 2,
    "fit cifar10 --seed -1": 2,
    "fit cifar10 --devices two": 2,
    "fit cifar10 --devices 0": 2,
    "fit cifar10 --precision double": 2,
    "fit cifar10 --source web": 2,
    "fit cifar10 --crop-size 33": 2,
    "fit cifar10 --run-dir full": 2,
    "fit --model broken.py:Net": 2,
    "fit --model broken.py:Nett --data broken.py:Clips": 2,
    "fit --model broken.py:Net --data broken.py:Clips --batch-size 4": 2,
    "verify cifar10 --counts 1,x": 2,
    "verify cifar10 --devices 2": 2,
    "evaluate": 2,
    "evaluate nowhere": 2,
    "evaluate full --split test": 2,
    "devices --all": 2,
}


def test_help_and_usage_errors_do_not_import_tensorflow(tmp_path):
    (tmp_path / "broken.py").write_text(BARE + "\nraise ImportError('help must not import this')\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    program = (
        "import json, sys\n"
        "from kerasdist.cli import main\n"
        "for line in json.loads(sys.argv[1]):\n"
        "    code = main(line.split())\n"
        "    imported = {'tensorflow', 'keras'} & set(sys.modules)\n"
        "    print('::', line, code, *imported, sep='|')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, json.dumps(list(QUICK))],
        env=environment(),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    found = [line.split("|")[1:] for line in done.stdout.splitlines() if line.startswith("::|")]
    assert found == [[line, str(code)] for line, code in QUICK.items()]
    assert "Traceback" not in done.stderr


def test_help_does_not_wait_for_logical_cpus():
    """They need TensorFlow; and its messages would come before the command could hold them back."""
    variables = {**environment(), "KERASDIST_LOGICAL_CPUS": "3"}
    for line, expected in (("--help", "usage"), ("devices", "CPU:2")):
        done = subprocess.run(
            [sys.executable, "-m", "kerasdist", line],
            env=variables,
            capture_output=True,
            text=True,
            check=True,
        )
        assert expected in done.stdout
        assert done.stderr == ""


COMMANDS = re.findall(r"^  (\w+) .*?  ", main.HELP, re.M)


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        *(f"{name} --help" for name in COMMANDS),
        "fit cifar10 --help",
        "fit cifar10 --lerning-rate 1",
        "evaluate nowhere",
        "export nowhere --format keras",
    ],
)
def test_help_and_usage_errors_answer_within_half_a_second(line):
    """In the processor's time: other tests may have the machine to themselves meanwhile."""
    seconds = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start(*line.split()).communicate()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        seconds.append(used)
        if used < 0.5:
            return
    pytest.fail(f"took {seconds} seconds")


@pytest.mark.parametrize(
    ("line", "received", "guess"),
    [
        ("ft cifar10", "'ft'", "'fit'"),
        ("fit cifr10", "'cifr10'", "'cifar10'"),
        ("fit cifar10 --lerning-rate 1", "'--lerning-rate'", "'--learning-rate'"),
        ("fit cifar10 --epoch=1", "'--epoch'", "'--epochs'"),
        ("fit cifar10 --precision mixed_bfloat", "mixed_bfloat", "'mixed_bfloat16'"),
        ("fit cifar10 --num_gpus 2", "'--num_gpus'", "'--devices'"),
        ("fit cifar10 --max-steps 2", "'--max-steps'", "'--steps'"),
        ("fit --model bare.py:Nett --data bare.py:Clips", "'Nett'", "'Net'"),
        ("fit --model bare.py:Net --data bare.py:Clips --model.filter 3", ".filter'", "'--model."),
    ],
)
def test_a_wrong_name_gets_a_guess(command, bare, line, received, guess):
    done = command(*line.split())
    assert done.code == 2
    assert received in done.err
    assert f"Did you mean {guess}" in done.err
    assert done.err.count("\n") == 1


def test_fit_help_lists_the_recipes_and_no_empty_defaults(command):
    done = command("fit", "--help")
    assert done.code == 0
    assert "cifar10: The network" in done.out
    assert "None" not in done.out
    assert set(re.findall(r"--no-[a-z-]+", done.out)) == {"--no-resume"}
    assert "unfinished runs/NAME/NNNN" in re.sub(r"[\s│]+", " ", done.out)


def test_a_recipes_help_lists_its_settings_with_meaning_and_default(command, tiny):
    text = re.sub(r"[\s│]+", " ", command("fit", "tiny", "--help").out)
    assert "--units INT width of the hidden layer (default: 3)" in text
    assert "--batch-size INT examples of one step (default: 8)" in text
    assert "--devices" in text
    assert "--source" not in text  # This recipe has no such setting.


def test_help_of_a_bare_model_lists_the_constructors_arguments(command, bare):
    text = re.sub(r"[\s│]+", " ", command("fit", *bare[:4], "--help").out)
    assert "--model.filters INT Units of the hidden layer, all alike. (default: 4)" in text
    assert "--model.rate FLOAT Step size." in text
    assert "--data.data-pattern INT|FLOAT|TEXT Files to read. (required)" in text
    assert "--data.count INT (default: 4)" in text
    assert "--batch-size INT examples of one step, over all devices (required)" in text
    assert "--data.batch-size" not in text


def test_debug_shows_the_traceback(command):
    assert "Traceback" not in command("fit", "cifr10").err
    done = command("fit", "cifr10", "--debug")
    assert done.code == 2
    assert "Traceback" in done.err
    assert "Did you mean 'cifar10'" in done.err


def test_a_reader_that_leaves_is_no_error():
    with start("fit", "cifar10", "--help") as process:
        process.stdout.close()
        process.wait()
        assert process.stderr.read() == ""


# A run of a recipe.


def test_fit_trains_a_recipe_and_leaves_its_folder(command, tiny):
    done = command("fit", "tiny", "--log-every", 2, "--units", 5)
    assert (done.code, done.err) == (0, "")
    run = Path("runs/tiny/0001")
    assert sorted(p.name for p in run.iterdir()) == [
        "best.keras",
        "checkpoints",
        "config.json",
        "environment.json",
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
    assert re.fullmatch(r"finished  4 steps, 32 examples \([\d.]+ examples/sec\)", lines[6])
    assert re.fullmatch(r"final     loss = .*, val_mae = [\d.]+", lines[7])
    assert re.fullmatch(r"best      val_loss = [\d.]+ in epoch 1", lines[8])
    assert lines[9:] == [
        "folder    runs/tiny/0001: final.keras, best.keras, report.html",
        "evaluate  kerasdist evaluate runs/tiny/0001",
        "continue  kerasdist fit runs/tiny/0001/config.json --run-dir runs/tiny/0001 --steps 8",
    ]


def test_json_prints_nothing_but_json_objects(command, tiny):
    done = command("fit", "tiny", "--json", "--log-every", 1, "--steps", 2)
    assert (done.code, done.err) == (0, "")
    assert [o["event"] for o in done.objects] == ["start", "step", "step", "epoch", "end"]
    start, first, second, _, end = done.objects
    assert start["run"] == end["run"] == "runs/tiny/0001"
    assert first["examples_per_second"] is None
    assert second["examples_per_second"] > 0
    assert end["status"] == "finished"


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
    assert command("fit", "tiny", "--batch-size", 2, "--devices", 4).code == 2
    assert not list(tmp_path.glob("runs/tiny/*"))


def test_the_weights_of_a_model_that_keras_cannot_describe_are_kept(command, tiny):
    """Keras refuses to save a class whose constructor takes an object, after all the training."""
    model = (tiny / "model.py").read_text()
    model = model.replace("def __init__(self, units=3,", "def __init__(self, config, units=3,")
    (tiny / "model.py").write_text(model.replace("Tiny(config.units", "Tiny(config, config.units"))
    done = command("fit", "tiny", "--steps", 2)
    assert done.code == 0
    assert "weights only" in done.out
    result = json.loads(Path("runs/tiny/0001/result.json").read_text())
    assert result["saved"] == "weights"
    evaluated = command("evaluate", "runs/tiny/0001", "--json")
    assert evaluated.objects[0]["loss"] == pytest.approx(result["val_loss"], rel=1e-6)
    with zipfile.ZipFile("runs/tiny/0001/final.keras") as archive:
        assert "model.weights.h5" in archive.namelist()


# Ends that are no success.


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
    assert errors == "kerasdist: interrupted\n"
    result = json.loads((tmp_path / "runs/tiny/0001/result.json").read_text())
    assert result["status"] == "interrupted"
    assert result["steps"] >= 2  # Step 3 was printed, and is written after that.


def test_v_shows_the_messages_of_tensorflow_and_evaluate_makes_its_devices(command, tiny, tmp_path):
    """In a process of its own, where TensorFlow has not started with six CPUs."""
    end = command("fit", "tiny", "--steps", 1, "--json").objects[-1]
    arguments = ("evaluate", "runs/tiny/0001", "--devices", 2, "--json", "-v")
    with start(*arguments, cwd=tmp_path) as process:
        out, errors = process.communicate()
    assert process.returncode == 0
    assert json.loads(out)["loss"] == pytest.approx(end["val_loss"], rel=1e-5)
    assert "tensorflow" in errors.lower() or "cuda" in errors.lower()


def test_devices_prints_a_table(command):
    done = command("devices")
    assert (done.code, done.err) == (0, "")
    assert "CPU:5" in done.out
    assert 'taken by "auto"' in done.out
    objects = command("devices", "--json").objects
    assert [o["name"] for o in objects if o["used_by_auto"]] == ["CPU:0"]
    assert command("devices", "--quiet") == Outcome(0, "", "")


# A bare model and provider.


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
    assert "no `--data.data-pattern`" in done.err
    done = command("fit", *files, "--data.data-pattern", "x")
    assert done.code == 2
    assert "no `--batch-size`" in done.err


# evaluate and verify.


def test_evaluate_gives_the_validation_metrics_of_the_run(command, tiny):
    end = command("fit", "tiny", "--ema", 0.5, "--json").objects[-1]
    expected = {"loss": end["val_loss"], "mae": end["val_mae"]}
    done = command("evaluate", "runs/tiny/0001", "--json", "--devices", 3)
    assert (done.code, done.err) == (0, "")
    assert done.objects == [pytest.approx(expected, rel=1e-5)]
    plain = command("evaluate", "runs/tiny/0001", "--batch-size", 7)
    assert re.fullmatch(r"loss = [\d.]+, mae = [\d.]+\n", plain.out)
    train = command("evaluate", "runs/tiny/0001", "--json", "--split", "train").objects[0]
    assert train["loss"] != pytest.approx(expected["loss"], rel=1e-3)


def test_evaluate_uses_the_precision_of_the_run(command, tiny):
    end = command("fit", "tiny", "--precision", "mixed_bfloat16", "--json").objects[-1]
    done = command("evaluate", "runs/tiny/0001", "--json")
    assert done.objects[0]["loss"] == pytest.approx(end["val_loss"], rel=1e-6)
    assert keras.config.dtype_policy().name == "float32"


def test_verify_shows_that_the_devices_agree(command, tiny):
    done = command("verify", "tiny", "--counts", "1,2", "--deterministic", "--steps", 3)
    assert (done.code, done.err) == (0, "")
    assert "tiny: 3 steps, 4 shards" in done.out
    rows = re.findall(r"│ (\d) +│ (\S+) +│ (\S+) +│ (\w{16}) +│ (\w+) +│", done.out)
    assert [(row[0], row[4]) for row in rows] == [("1", "yes"), ("2", "yes")]
    assert rows[0][3] == rows[1][3]


def test_verify_exits_with_1_where_the_devices_disagree(command, tiny):
    """A loss that depends on the number of replicas, as a hand-written tower's did."""
    with open(tiny / "model.py", "a") as file:
        file.write(
            "\n\nclass Towers(Tiny):\n"
            "    def compute_loss(self, x, y, y_pred, sample_weight=None, training=True):\n"
            "        import tensorflow as tf\n"
            "        towers = tf.distribute.get_strategy().num_replicas_in_sync\n"
            "        return keras.ops.mean((y - y_pred) ** 2) * towers\n\n\n"
            "def build_model(config):\n"
            "    return Towers(config.units, 0.01)\n"
        )
    done = command("verify", "tiny", "--counts", "1,2", "--json", "--steps", 2)
    assert done.code == 1
    (found,) = done.objects
    assert found["agree"] is False
    assert [row["agrees"] for row in found["rows"]] == [True, False]
    assert found["rows"][1]["weights_difference"] > 1e-3


def test_verify_reads_a_provider_from_its_beginning_each_time(command, bare):
    longer = ("--data.count", 100)
    done = command("verify", *bare, *longer, "--counts", "1,2", "--steps", 3, "--json")
    assert done.objects[0]["agree"] is True
    assert done.code == 0
