"""Options of the command line, parsed."""

import json
import re
from pathlib import Path

import pytest

from kerasdist import KerasdistError
from kerasdist.cli import options
from kerasdist.cli.options import OUTPUT_OPTIONS, RUN_OPTIONS, VERIFY_OPTIONS, parse_fit
from kerasdist.cli.run_options import parse_evaluate
from kerasdist.devices import names

FILES = {
    "config.py": (
        "from dataclasses import dataclass, field\nfrom typing import Literal\n\n\n"
        "@dataclass(frozen=True)\nclass Config:\n"
        "    kind: Literal['big', 'small'] = 'big'\n"
        "    sizes: tuple[int, ...] = (1, 2)\n"
        "    use_bias: bool = True\n"
        "    quick: bool = False\n"
        "    width: int | None = None\n"
        "    epochs: int = 7\n"
    ),
    "data.py": "",
    "model.py": "",
}


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    for name, content in FILES.items():
        (tmp_path / "mine" / name).write_text(content)
    return "mine"


def test_defaults_are_those_of_fit_and_of_the_recipe(recipe):
    parsed = parse_fit([recipe])
    defaults = {k: v.default for k, v in {**RUN_OPTIONS, **OUTPUT_OPTIONS}.items()}
    assert parsed.run == {
        **{k: v for k, v in defaults.items() if k not in ("source", "data_dir")},
        "epochs": 7,
    }
    assert parsed.settings == {
        "kind": "big",
        "sizes": (1, 2),
        "use_bias": True,
        "quick": False,
        "width": None,
        "epochs": 7,
    }


def test_settings_have_their_types(recipe):
    argv = "--kind small --sizes 3 4 5 --no-use-bias --quick --width 8 --epochs=2 --batch_size 16"
    parsed = parse_fit([recipe, *argv.split()])
    assert parsed.settings == {
        "kind": "small",
        "sizes": (3, 4, 5),
        "use_bias": False,
        "quick": True,
        "width": 8,
        "epochs": 2,
    }
    assert parsed.run["batch_size"] == 16
    assert parsed.run["epochs"] == 2  # The recipe's setting is the run's option.
    assert parse_fit([recipe, "--width", "8", "--width", "None"]).settings["width"] is None


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--kind bigg", "Received `--kind bigg`. Expected one of big, small. Did you mean 'big'?"),
        (
            "--width x",
            "Received `--width x`. Expected a whole number. Give for example `--width 10`.",
        ),
        ("--epochs -1", "Received `--epochs -1`. Expected a whole number of at least 1."),
        ("--clip-norm -1", "Expected a number above 0. Give for example `--clip-norm 1.0`."),
        ("--ema 1", "Expected a decay between 0 and 1. Give for example `--ema 0.999`."),
        ("--seed 1.5", "Expected a whole number from 0 on."),
        ("--units 3", "Received '--units'. Expected an option of `kerasdist fit mine`."),
        ("3", "Received '3'. Expected options, which begin with --."),
    ],
)
def test_errors_say_what_was_received_expected_and_to_do(recipe, argv, message):
    with pytest.raises(KerasdistError, match=re.escape(message)):
        parse_fit([recipe, *argv.split()])


def test_a_setting_without_default_is_required(recipe):
    path = Path("mine/config.py")
    path.write_text(path.read_text().replace("    kind:", "    name: str\n    kind:"))
    with pytest.raises(KerasdistError, match="Received no `--name`"):
        parse_fit([recipe])
    assert parse_fit([recipe, "--name", "x"]).settings["name"] == "x"


def test_saved_options_are_the_defaults_but_for_the_folder(recipe):
    saved = {
        "recipe": str(Path(recipe).resolve()),
        "settings": {"sizes": [5], "width": 3},
        "options": {"steps": 9, "devices": "2", "run_dir": "old", "dry_run": True},
    }
    Path("config.json").write_text(json.dumps(saved))
    parsed = parse_fit(["config.json", "--width", "4"])
    assert parsed.settings["sizes"] == (5,)
    assert parsed.settings["width"] == 4
    assert (parsed.run["steps"], parsed.run["devices"]) == (9, "2")
    assert (parsed.run["run_dir"], parsed.run["dry_run"]) == (None, False)


def test_a_setting_called_model_is_no_bare_model(recipe):
    path = Path("mine/config.py")
    path.write_text(path.read_text().replace("kind:", "model:"))
    assert parse_fit([recipe, "--model", "small"]).settings["model"] == "small"


def test_verify_has_only_the_options_that_it_uses(recipe):
    parsed = parse_fit([recipe, "--counts", "1, 3"], "kerasdist verify", VERIFY_OPTIONS)
    assert parsed.run["counts"] == "1, 3"
    assert parsed.run["steps"] == 5
    with pytest.raises(KerasdistError, match="'--devices'"):
        parse_fit([recipe, "--devices", "2"], "kerasdist verify", VERIFY_OPTIONS)


def test_a_bare_model_reads_the_types_of_its_source(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bare.py").write_text(
        "class M:\n    def __init__(self, a, sizes=(1, 2), flag=False): pass\n\n\n"
        "class D:\n    batch_size = 4\n"
    )
    argv = "--model bare.py:M --data=bare.py:D --model.a 3 --model.sizes 4 5 6 --model.flag"
    parsed = parse_fit(argv.split())
    assert parsed.model_arguments == {"a": 3, "sizes": (4, 5, 6), "flag": True}
    assert parsed.data_arguments == {}
    for text, value in (("0.5", 0.5), ("x/*.wav", "x/*.wav")):
        argv = ["--model", "bare.py:M", "--data", "bare.py:D", "--model.a", text]
        assert parse_fit(argv).model_arguments["a"] == value


def test_the_batch_size_of_a_provider_is_the_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("bare.py").write_text(
        "class M: pass\n\n\nclass D:\n    def __init__(self, batch_size=4): pass\n"
    )
    files = ["--model", "bare.py:M", "--data", "bare.py:D"]
    assert parse_fit(files).data_arguments == {"batch_size": 4}
    parsed = parse_fit([*files, "--batch-size", "8"])
    assert parsed.data_arguments == {"batch_size": 8}
    assert parsed.run["batch_size"] is None  # Given once, to the provider.


def test_evaluate_names_a_run_first():
    run, parsed = parse_evaluate(["runs/x/0001", "--split", "train"])
    assert run == Path("runs/x/0001")
    assert parsed["split"] == "train"
    for argv in ([], ["--split", "train"]):
        with pytest.raises(KerasdistError, match="where the run belongs"):
            parse_evaluate(argv)


DEVICES = "auto|1|6|0,2|0, 1|CPU:0|cpu|cpu:4|gpu|GPU:3|/gpu:1|/device:CPU:0|CPU:0,CPU:1|cpu:0, 1"


@pytest.mark.parametrize("text", DEVICES.split("|"))
def test_the_syntax_of_devices_is_that_of_fit(text):
    assert options.RUN_OPTIONS["devices"].valid(text)
    assert names.resolve_names(text, soft=True)


@pytest.mark.parametrize("text", ["", "0", "two", "cpu;1", "CPU:0,gpus", "cpu,gpu", "tpu:0", "-1"])
def test_what_devices_cannot_read_is_refused_before_tensorflow_is_imported(text):
    assert not options.RUN_OPTIONS["devices"].valid(text)
    with pytest.raises(KerasdistError):
        names.resolve_names(text, soft=True)


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


def test_there_is_no_guess_where_nothing_is_near(command):
    outcome = command("evaluate", "somewhere/else")
    assert outcome.code == 2
    assert "Did you mean" not in outcome.err
    assert "`kerasdist runs` lists them." in outcome.err
