"""The command line: help, usage errors and guesses, all without TensorFlow."""

import json
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from kerasdist.cli import main
from kerasdist.errors import DivergedError, KerasdistError, RunFailedError
from kerasdist.phases import prose
from tests.cli.conftest import BARE, environment, start
from tests.conftest import Outcome

ROOT = Path(__file__).resolve().parents[2]
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
    "fit cifar10 --data-dir nowhere": 2,
    "fit cifar10 --data-dir full": 2,
    "fit audio --data-dir full --source files": 2,
    "fit cifar10 --devices 2 --shards 3": 2,
    "fit cifar10 --devices cpu:4 --shards 6": 2,
    "fit cifar10 --devices 0,1 --shards 6 --deterministic": 2,
    "fit cifar10 --batch-size 2 --shards 4": 2,
    "verify cifar10 --counts 1,2,3 --shards 4": 2,
    "verify cifar10 --counts 1,2 --batch-size 1": 2,
    "bench cifar10 --counts 3 --shards 4": 2,
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


def test_the_help_lists_every_command():
    assert re.findall(r"^  (\w+) .*?  ", main.HELP, re.M) == list(main.COMMANDS)


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


def test_help_and_usage_errors_do_not_import_tensorflow(tmp_path):
    (tmp_path / "broken.py").write_text(BARE + "\nraise ImportError('help must not import this')\n")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    program = (
        "import json, sys\n"
        "from kerasdist.cli.main import main\n"
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
    assert "`data_dir` 'nowhere', which does not exist" in done.stderr
    assert "`data_dir` 'full', with no CIFAR-10 in it" in done.stderr
    assert "Received `shards=3` on 2 devices." in done.stderr


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
        assert done.stderr in ("", "kerasdist: starting TensorFlow ...\n")


@pytest.mark.parametrize(
    "line",
    [
        "--help",
        *(f"{name} --help" for name in main.COMMANDS),
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
        ("fit cifar10 --lr 0.1", "'--lr'", "'--learning-rate'"),
        ("fit cifar10 --batch=8", "'--batch'", "'--batch-size'"),
        ("fit cifar10 --gpus 2", "'--gpus'", "'--devices'"),
        ("fit cifar10 --gpu 0", "'--gpu'", "'--devices'"),
        ("fit cifar10 --model-dir x", "'--model-dir'", "'--run-dir'"),
        ("fit cifar10 --output x", "'--output'", "'--run-dir'"),
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
    assert "cifar10: Networks for CIFAR-10" in done.out
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
    assert "--batch-size INT examples per step, over all devices (required)" in text
    assert "--data.batch-size" not in text


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (KerasdistError("wrong option"), 2, "kerasdist: wrong option\n"),
        (RunFailedError("disk full"), 1, "kerasdist: disk full\n"),
        (DivergedError("step 3", step=3, names=()), 3, "kerasdist: step 3\n"),
        (KeyboardInterrupt(), 130, "kerasdist: interrupted\n"),
        (ValueError("bad\nvery"), 1, "kerasdist: ValueError: bad (--debug shows the traceback)\n"),
        (ValueError(), 1, "kerasdist: ValueError: ValueError (--debug shows the traceback)\n"),
    ],
)
def test_an_error_becomes_an_exit_code(command, monkeypatch, error, code, message):
    def fail(argv):
        raise error

    monkeypatch.setitem(main.COMMANDS, "doctor", fail)
    assert command("doctor") == Outcome(code, "", message)


def test_debug_shows_the_traceback(command):
    assert "Traceback" not in command("fit", "cifr10").err
    done = command("fit", "cifr10", "--debug")
    assert done.code == 2
    assert "Traceback" in done.err
    assert "Did you mean 'cifar10'" in done.err


@pytest.mark.parametrize(
    ("file", "text", "wrong"),
    [
        ("config.py", "    units:", "    modl; units:"),
        ("data.py", "    return {", "    modl; return {"),
        ("model.py", "        self.learning_rate = learning_rate", "        modl"),
    ],
)
def test_an_error_in_a_recipe_names_file_and_line(command, tiny, file, text, wrong):
    lines = (tiny / file).read_text().splitlines()
    number = next(i for i, line in enumerate(lines, start=1) if line.startswith(text))
    lines[number - 1] = lines[number - 1].replace(text, wrong)
    (tiny / file).write_text("\n".join(lines))
    done = command("fit", "tiny")
    where = f"({file}, line {number}; --debug shows the traceback)"
    assert (done.code, done.err) == (
        1,
        f"kerasdist: NameError: name 'modl' is not defined {where}\n",
    )


def test_an_error_in_a_file_beside_the_recipe_names_the_innermost_one(command, tiny):
    (tiny / "parts").mkdir()
    (tiny / "parts" / "sums.py").write_text("def double(x):\n    return x + None\n")
    data = (tiny / "data.py").read_text().replace("random = np", "double(2)\n    random = np")
    (tiny / "data.py").write_text(f"from .parts.sums import double\n{data}")
    assert "(parts/sums.py, line 2; --debug" in command("fit", "tiny").err


def test_an_error_in_the_call_of_a_model_names_file_and_line(command, tiny):
    source = (tiny / "model.py").read_text()
    (tiny / "model.py").write_text(source.replace("self.hidden(x)", "self.hidden(modl)"))
    number = source[: source.index("self.hidden(x)")].count("\n") + 1
    done = command("fit", "tiny")
    assert "name 'modl' is not defined" in done.err
    assert done.err.endswith(f" (model.py, line {number}; --debug shows the traceback)\n")


def test_an_error_in_a_class_names_file_and_line(command, bare):
    number = BARE[: BARE.index("raise ValueError")].count("\n") + 1
    done = command("fit", *bare, "--data.fail-at", 1)
    assert f"is broken (bare.py, line {number}; --debug shows the traceback)" in done.err


def test_a_reader_that_leaves_is_no_error():
    with start("fit", "cifar10", "--help") as process:
        process.stdout.close()
        process.wait()
        assert process.stderr.read() == ""


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("fitt cifar10", "Did you mean 'fit'?"),
        ("fit cifar1", "Did you mean 'cifar10'?"),
        ("fit recipes/cifr10", "Did you mean 'cifar10'?"),
        ("fit cifar10 --epoch 3", "Did you mean '--epochs'?"),
        ("fit cifar10 --preset acurate", "Did you mean 'accurate'?"),
        ("fit cifar10 --optimizer adamm", "Did you mean 'adam'?"),
        ("fit cifar10 --devices gpuu", "Did you mean 'gpu'?"),
        ("fit cifar10 --devices cpy:4", "Did you mean 'cpu:4'?"),
        ("evaluate runs/mine/001", "Did you mean 'runs/mine/0001'?"),
        ("evaluate runs/mini/0002 --which last", "Did you mean 'runs/mine/0002'?"),
        ("predict runs/mine . --which best", "Did you mean 'runs/mine/0002'?"),
        ("export runs/mine/0003 --format onnx", "Did you mean 'runs/mine/000"),
        ("export runs/mine/0001 --format onx", "Did you mean 'onnx'?"),
        ("runs runs/mime", "Did you mean 'mine'?"),
        ("new x --template imag", "Did you mean 'image'?"),
        ("completion zhs", "Did you mean 'zsh'?"),
    ],
)
def test_what_is_mistyped_gets_the_right_guess(command, tmp_path, argv, message):
    for number in ("0001", "0002"):
        folder = tmp_path / "runs/mine" / number
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"kerasdist": "0", "recipe": "cifar10"}))
    outcome = command(*argv.split())
    assert outcome.code == 2
    assert message in outcome.err


@pytest.mark.parametrize(
    "argv", ["evaluate somewhere/else", "fit audio --with-zebras 1", "fit cifar10 --verbosity"]
)
def test_there_is_no_guess_where_nothing_is_near(command, argv):
    outcome = command(*argv.split())
    assert outcome.code == 2
    assert "Did you mean" not in outcome.err


def test_a_run_that_is_not_there(command, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    for name, problem in (
        ("runs/nope", "The folder 'runs/nope' does not exist."),
        ("empty", "'empty' is not a run: it has no config.json that kerasdist wrote."),
        ("file", "'file' is a file."),
    ):
        outcome = command("evaluate", name)
        assert outcome.code == 2
        assert outcome.err.startswith(f"kerasdist: {problem} Expected the folder of a run.")
        assert "`kerasdist runs` lists the runs." in outcome.err


def test_an_error_on_a_terminal_is_broken_between_words(command, monkeypatch):
    monkeypatch.setattr(prose, "can_redraw", lambda stream: stream is sys.stderr)
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setattr(main.displays, "of_command", lambda **options: None)
    lines = command("evaluate", "runs/nope").err.splitlines()
    assert lines == [
        "kerasdist: The folder 'runs/nope' does not exist.",
        "Expected the folder of a run. `kerasdist runs`",
        "lists the runs.",
    ]
