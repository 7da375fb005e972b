"""`kerasdist run`: a script sees and gives what `python SCRIPT.py` would."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kerasdist.cli import script_arguments
from kerasdist.errors import KerasdistError

ROOT = Path(__file__).resolve().parents[2]


def start(*arguments, cwd, module=True):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("KERASDIST_LOGICAL_CPUS", None)
    command = [sys.executable, *(("-m", "kerasdist") if module else ()), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)


@pytest.fixture
def script(tmp_path):
    """Writes a script."""

    def write(text, name="train.py"):
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


SURROUNDINGS = """
from __future__ import annotations
import sys, os, pickle
import beside  # A module next to the script.

class Mine:
    pass

print(__name__, __file__, sys.argv, sys.path[0], os.getcwd(), beside.VALUE)
print(sys.modules["__main__"].Mine is Mine, pickle.loads(pickle.dumps(Mine())).__class__ is Mine)
print("annotations" in globals(), __doc__, __spec__, type(__builtins__).__name__)
if "--fail" in sys.argv:
    def inner():
        raise LookupError("mine")
    inner()
sys.exit({"--text": "a text", "--seven": 7}.get(sys.argv[-1]))
"""


@pytest.mark.parametrize("last", ["--seven", "--text", "--help", "--fail", "--devices=x"])
def test_a_script_is_run_as_python_runs_it(script, tmp_path, last):
    script("VALUE = 3", "beside.py")
    path = script(SURROUNDINGS)
    by_python = start("train.py", "-v", last, cwd=tmp_path, module=False)
    ours = start("run", "train.py", "-v", last, cwd=tmp_path)
    assert (ours.returncode, ours.stdout) == (by_python.returncode, by_python.stdout)
    # What comes before the script is not the script's.
    note = f"{last} is an argument of train.py; options of kerasdist come before the script"
    told = f"kerasdist: {note}\n" if last == "--devices=x" else ""
    assert ours.stderr == f"kerasdist: starting TensorFlow ...\n{told}{by_python.stderr}"
    assert str(path) in ours.stdout


FITS = """
import sys
import keras, numpy as np, tensorflow as tf
import kerasdist
print(len(tf.config.list_logical_devices("CPU")), kerasdist.is_chief())
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
model.compile(keras.optimizers.SGD(1e30 if "diverge" in sys.argv else 0.1), "mse")
x = np.full((16, 2), 1e10 if "diverge" in sys.argv else 1.0, "float32")
batch_size = -1 if "refused" in sys.argv else 4
model.fit(x, np.ones((16, 1)), epochs=3, batch_size=batch_size, verbose=0)
print(keras.config.dtype_policy().name, np.random.normal())
"""


def test_options_come_before_the_script(script, tmp_path):
    script(FITS)
    options = ("--devices", "2", "--seed", "3", "--precision", "float64", "--run-dir", "fits")
    ours = start("run", *options, "train.py", cwd=tmp_path)
    assert ours.returncode == 0, ours.stderr
    assert ours.stdout.splitlines() == ["2 True", "float64 1.7886284734303186"]
    assert (tmp_path / "fits" / "fit-01" / "result.json").is_file()


def test_a_step_that_is_not_finite_exits_with_3(script, tmp_path):
    script(FITS)
    ours = start("run", "train.py", "diverge", cwd=tmp_path)
    assert ours.returncode == 3
    assert "is not finite" in ours.stderr


def test_an_error_of_kerasdist_ends_at_the_scripts_line(script, tmp_path):
    script(FITS)
    ours = start("run", "train.py", "refused", cwd=tmp_path)
    assert ours.returncode == 1
    *frames, message = ours.stderr.splitlines()
    assert message.startswith("kerasdist.errors.KerasdistError: Received `batch_size=-1`")
    assert "model.fit(" in ours.stderr
    assert [line for line in frames if "File" in line] == [
        f'  File "{tmp_path / "train.py"}", line 10, in <module>'
    ]
    assert "methods.py" in start("run", "--debug", "train.py", "refused", cwd=tmp_path).stderr


INTERRUPTED = """
import os, signal
import keras, numpy as np
class Stop(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 2:
            os.kill(os.getpid(), signal.SIGINT)
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
model.fit(np.ones((16, 2)), np.ones((16, 1)), batch_size=4, verbose=2, callbacks=[Stop()])
"""


@pytest.mark.parametrize("options", [(), ("--run-dir", "fits")])
def test_ctrl_c_shows_the_scripts_frames_and_what_was_saved(options, script, tmp_path):
    path = script(INTERRUPTED)
    ours = start("run", "--devices", "2", *options, "train.py", cwd=tmp_path)
    assert ours.returncode == 130
    frames = [line for line in ours.stderr.splitlines() if "File" in line]
    assert frames[0] == f'  File "{path}", line 10, in <module>'
    assert all(str(path) in frame for frame in frames)
    assert ours.stderr.splitlines()[1] == "kerasdist: uses 2 devices (CPU:0, CPU:1)"
    told = "kerasdist: saved after step 3; the same command continues"
    assert ours.stderr.splitlines().count(told) == bool(options)


def test_a_syntax_error_looks_as_in_python(script, tmp_path):
    script("x = (")
    by_python = start("train.py", cwd=tmp_path, module=False)
    ours = start("run", "train.py", cwd=tmp_path)
    assert (ours.returncode, ours.stderr.splitlines()[-1]) == (1, by_python.stderr.splitlines()[-1])


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "The script is missing"),
        (["--devices", "2"], "The script is missing"),
        (["trian.py"], "Did you mean 'train.py'"),
        (["book.ipynb"], "is a notebook"),
        (["data.csv"], "not a Python file"),
        (["folder"], "kerasdist fit folder"),
        (["recipe"], "`kerasdist fit recipe` trains a recipe"),
        (["fits"], "`kerasdist runs fits` lists"),
        (["--device", "2", "train.py"], "Did you mean '--devices'"),
        (["--devices", "many", "train.py"], "--devices many"),
    ],
)
def test_a_mistake_is_told(argv, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("train.py", "book.ipynb", "data.csv", "recipe/config.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "folder").mkdir()
    (tmp_path / "fits" / "fit-01").mkdir(parents=True)
    (tmp_path / "fits" / "fit-01" / "config.json").write_text('{"kerasdist": "0"}')
    with pytest.raises(KerasdistError) as error:
        script_arguments.parse_run(argv)
    assert message in str(error.value)


def test_the_command_that_lists_the_options_can_be_pasted():
    with pytest.raises(KerasdistError, match=r" `kerasdist run --help` lists the options\.$"):
        script_arguments.parse_run(["--device", "2", "x.py"])


def test_words_after_the_script_are_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()
    given = ["--run_dir=a", "--deterministic", "train.py", "--devices", "9", "-v", "--", "x"]
    found = script_arguments.parse_run(given)
    assert found.arguments == ("--devices", "9", "-v", "--", "x")
    assert (found.options["run_dir"], found.options["devices"]) == ("a", "auto")
    assert not found.options["verbose"]


@pytest.mark.parametrize(
    ("text", "words", "shown"),
    [
        ("", ("--devices", "2"), "--devices 2"),
        ("", ("a", "--deterministic", "x"), "--deterministic"),
        ("", ("--run-dir=runs", "--seed", "1"), "--run-dir=runs"),
        ("", ("--devices",), "--devices"),
        ("", ("devices", "2", "--other", "--", "-v"), None),
        ("parser.add_argument('--run-dir')", ("--run_dir", "runs"), None),
        ('flags.DEFINE_integer("seed", 1, "")', ("--seed", "1", "--keep", "3"), "--keep 3"),
    ],
)
def test_an_option_after_the_script_is_told(text, words, shown, script):
    given = script_arguments.parse_run([str(script(text)), *words])
    told = script_arguments.misplaced(given)
    expected = "is an argument of train.py; options of kerasdist come before the script"
    assert told == (shown and f"{shown} {expected}")


WORKERS = """
import keras, numpy as np, kerasdist
keras.utils.set_random_seed(1)
x = np.arange(24.0).reshape(12, 2) / 24
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
print("chief", kerasdist.is_chief())
print(model.fit(x, x[:, :1], batch_size=4, epochs=2, verbose=0, shuffle=False).history)
print(model.evaluate(x, x[:, :1], verbose=0), model.train_on_batch(x, x[:, :1]))
print(model.predict(x, verbose=0).ravel().tolist())
"""


def test_every_worker_runs_the_script_and_the_chief_prints(script, tmp_path):
    script(WORKERS)
    shared = ("--deterministic", "train.py")
    alone = start("run", *shared, cwd=tmp_path)
    together = start("launch", "--workers", "2", "run", *shared, cwd=tmp_path)
    assert together.returncode == 0, together.stderr
    assert together.stdout == alone.stdout
    assert together.stdout.count("chief True") == 1
