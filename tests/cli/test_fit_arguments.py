"""The arguments of `fit`: recipes, their settings, and classes."""

import json
import re
from pathlib import Path

import pytest

from kerasdist import KerasdistError
from kerasdist.cli.fit_arguments import parse_fit
from kerasdist.cli.options import OUTPUT_OPTIONS, RUN_OPTIONS, VERIFY_OPTIONS
from tests.own_data import write_images, write_sounds

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
            "Received `--width x`. Expected a whole number. For example: `--width 10`.",
        ),
        ("--epochs -1", "Received `--epochs -1`. Expected a whole number of at least 1."),
        ("--clip-norm -1", "Expected a number above 0. For example: `--clip-norm 1.0`."),
        ("--ema 1", "Expected a decay between 0 and 1. For example: `--ema 0.999`."),
        ("--seed 1.5", "Expected a whole number of at least 0."),
        ("--units 3", "Unknown option '--units'."),
        ("3", "Unexpected argument '3'. Expected options, which begin with --."),
    ],
)
def test_errors_say_what_was_received_expected_and_to_do(recipe, argv, message):
    with pytest.raises(KerasdistError, match=re.escape(message)):
        parse_fit([recipe, *argv.split()])


def test_a_setting_without_default_is_required(recipe):
    path = Path("mine/config.py")
    path.write_text(path.read_text().replace("    kind:", "    name: str\n    kind:"))
    with pytest.raises(KerasdistError, match="`--name` is missing"):
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


@pytest.mark.parametrize(
    ("name", "given", "hint"),
    [
        ("shapes", "--target x", "`--target` is an option of tables; 'shapes' holds images."),
        ("people.csv", "--flip true", "`--flip` is an option of images; 'people.csv' is a table."),
        (
            "letters",
            "--rate 8000",
            "`--rate` is an option of WAV files; 'letters' holds text files.",
        ),
        ("tones", "--targt x", "Unknown option '--targt'. `kerasdist fit tones --help` lists"),
    ],
)
def test_an_option_of_another_kind_of_data(name, given, hint, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_images(tmp_path / "shapes", 4)
    write_sounds(tmp_path / "tones", 4)
    (tmp_path / "people.csv").write_text("age,survived\n" + "1,0\n2,1\n" * 20)
    for each in ("a", "b"):
        (tmp_path / "letters" / each).mkdir(parents=True)
        for number in range(4):
            (tmp_path / "letters" / each / f"{number}.txt").write_text("some words")
    with pytest.raises(KerasdistError, match=re.escape(hint)):
        parse_fit([name, *given.split()])


def test_the_help_shows_no_empty_default(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.csv").write_text("age,survived\n" + "1,0\n2,1\n" * 20)
    with pytest.raises(SystemExit):
        parse_fit(["people.csv", "--help"])
    shown = capsys.readouterr().out
    assert "--ignore" in shown
    assert "(default: )" not in shown
