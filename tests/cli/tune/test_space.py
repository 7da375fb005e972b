"""The search space: texts, what a recipe gives, and the defaults."""

import doctest

import pytest

from kerasdist.cli.parser import Option
from kerasdist.cli.tune import command, space
from kerasdist.cli.tune.arguments import parse_tune
from kerasdist.cli.tune.command import shares
from kerasdist.cli.tune.space import Choice, Range, parse
from kerasdist.errors import KerasdistError
from tests.own_data import write_images


@pytest.mark.parametrize("module", [space, command])
def test_the_examples_run(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("text", "kind", "expected"),
    [
        ("1e-4:1e-1:log", float, Range(1e-4, 0.1, is_log=True)),
        ("0:1", float, Range(0, 1)),
        ("0:0.5:0.1", float, Range(0, 0.5, step=0.1)),
        ("16:128:16", int, Range(16, 128, step=16, is_whole=True)),
        ("1:100:log", int | None, Range(1, 100, is_log=True, is_whole=True)),
        ("adam,sgd", str, Choice(("adam", "sgd"))),
        ("none,0.1", float | None, Choice((None, 0.1))),
        ("true,false", bool, Choice((True, False))),
    ],
)
def test_ranges_and_choices(text, kind, expected):
    assert parse("x", text, Option(kind, None, "")) == expected


@pytest.mark.parametrize(
    "text",
    ["", "3", "a,a", "2:1", "1:1", "a:b", "0:1:log", "1:2:5", "1:2:3:4", "1:inf", "1:2:lag"],
)
def test_a_wrong_text_is_refused(text):
    with pytest.raises(KerasdistError, match=r"Received `--search x.*Expected a setting and a ran"):
        parse("x", text, Option(float, None, ""))


def test_a_whole_number_needs_whole_ends():
    with pytest.raises(KerasdistError, match=r"--search units=1.5:3"):
        parse("units", "1.5:3", Option(int, 3, ""))


def test_without_a_search_it_is_around_the_recipes_values(tiny, monkeypatch):
    monkeypatch.chdir(tiny.parent)
    made = parse_tune(["tiny", "--batch-size", "16"])
    assert made.space.described() == {"learning_rate": "0.01:1:log", "batch_size": "4,8,16"}
    assert made.name == "tiny"


def test_a_recipe_gives_the_space(tiny, monkeypatch):
    monkeypatch.chdir(tiny.parent)
    config = tiny / "config.py"
    text = config.read_text()
    config.write_text(text + 'SEARCH = {"units": "2:8", "learning_rate": (0.1, 0.2)}\n')
    made = parse_tune(["tiny"])
    assert made.space.dimensions == {
        "units": Range(2, 8, is_whole=True),
        "learning_rate": Choice((0.1, 0.2)),
    }
    given = parse_tune(["tiny", "--search", "units=3,4", "--search=learning_rate=0.1:0.2"])
    assert list(given.space.dimensions) == ["units", "learning_rate"]
    config.write_text(text + 'SEARCH = {"units": 3}\n')
    with pytest.raises(KerasdistError, match="Received 3 for 'units' in `SEARCH`"):
        parse_tune(["tiny"])
    config.write_text(text + 'def search_space(trial):\n    return {"units": trial.number}\n')
    assert parse_tune(["tiny"]).space.suggest(type("Trial", (), {"number": 4})) == {"units": 4}
    config.write_text(text + "def search_space(trial):\n    return 3\n")
    with pytest.raises(KerasdistError, match=r"`search_space\(trial\)`.* returned 3"):
        parse_tune(["tiny"]).space.suggest(None)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--search", "unit=2:8"], "'unit' is not a setting that can be searched."),
        (["--search", "unit=2:8"], "Did you mean 'units'? `kerasdist fit tiny --help` lists"),
        (["--search", "batch_size=0:8"], "Received `--batch-size 0`"),
        (["--search", "units=a,b"], "Received `--units a`. Expected a whole number"),
        (["--search"], "`--search` without a value"),
        (["--search", "units"], "Received `--search units`. Expected a setting and a range"),
        (["--trials", "0"], "Received `--trials 0`"),
        (["--name", "../x"], "Received `--name ../x`. Expected letters"),
        (["--prune", "often"], "Expected one of median, halving, none"),
        (["--run-dir", "x"], "Unknown option '--run-dir'"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_trained(given, message, tiny, command):
    done = command("tune", "tiny", *given)
    assert done.code == 2
    assert message in done.err
    assert not (tiny.parent / "tune").exists()


def test_a_recipe_without_known_settings_needs_a_search(tiny, command):
    (tiny / "config.py").write_text(
        "from dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass Config:\n"
        "    units: int = 3\n"
    )
    done = command("tune", "tiny")
    assert (done.code, "There is nothing to search" in done.err) == (2, True)


def test_the_arguments_of_a_trial(tiny, monkeypatch):
    monkeypatch.chdir(tiny.parent)
    argv = [
        "tiny",
        "--trials",
        "3",
        "--units=4",
        "--json",
        "--epochs",
        "9",
        "--search",
        "units=2:3",
    ]
    made = parse_tune(argv)
    assert made.of_trial({"units": 5}) == ["tiny", "--epochs", "9", "--units", "5"]
    assert made.of_trial({"ema": None, "deterministic": True})[-3:] == [
        "--ema",
        "none",
        "--deterministic",
    ]


def test_a_trial_replaces_an_option_that_has_no_value(tmp_path, monkeypatch):
    monkeypatch.chdir(write_images(tmp_path / "photos", 5).parent)
    argv = ["photos", "--backbone", "mobilenet_v3_small", "--weights", "x", "--freeze"]
    made = parse_tune([*argv, "--epochs", "5", "--search", "freeze=1:3"])
    assert made.of_trial({"freeze": 2}) == [*argv[:-1], "--epochs", "5", "--freeze", "2"]


def test_gpus_are_dealt_to_the_jobs():
    assert shares(2, "auto", [0, 1, 2]) == ["GPU:0", "GPU:1"]
    assert shares(1, "2", [0, 1, 2]) == ["0,1"]
    assert shares(2, "1,2", [0, 1, 2]) == ["GPU:1", "GPU:2"]
    with pytest.raises(KerasdistError, match=r"`--jobs 3` with 2 GPUs. Expected at most one job"):
        shares(3, "auto", [0, 1])
