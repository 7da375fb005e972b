"""Loading recipes, their settings and presets, and the recipes in the wheel."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kerasdist
from kerasdist import KerasdistError
from kerasdist.cli import fit_arguments, options
from kerasdist.recipes.places import PARTS
from kerasdist.recipes.recipe import summary
from tests import classifier_recipe

ROOT = Path(__file__).resolve().parents[2]
CIFAR10 = ROOT / "recipes" / "cifar10"


@pytest.fixture
def folder(tmp_path):
    """A recipe whose files import one another; its name is no Python name."""
    path = tmp_path / "my.recipe-2"
    path.mkdir()
    (path / "config.py").write_text(
        "from __future__ import annotations\nfrom dataclasses import dataclass\n\n\n"
        "@dataclass(frozen=True)\nclass Config:\n    width: int = 3\n    sizes: tuple = (1, 2)\n"
        "    rate: float | None = None\n"
    )
    (path / "shapes.py").write_text("def shape(config):\n    return (config.width, 2)\n")
    (path / "data.py").write_text(
        "import numpy as np\nfrom .shapes import shape\n\n\n"
        "def build_data(config, split):\n    return np.zeros(shape(config)), split\n"
    )
    (path / "model.py").write_text(
        '"""A model of nothing."""\nfrom .data import build_data\n\n\n'
        "def build_model(config):\n    return build_data(config, 'x')[0].shape\n"
    )
    return path


def test_a_recipe_is_loaded_by_its_folder_and_its_files_import_one_another(folder):
    recipe = kerasdist.load_recipe(folder, width=5)
    assert recipe.name == "my.recipe-2"
    assert recipe.config.width == 5
    assert recipe.build_model() == (5, 2)
    assert recipe.build_data("train")[1] == "train"
    assert recipe.source() == "recipe"
    assert summary(folder) == "A model of nothing."


def test_recipes_of_one_name_in_two_folders_are_two(folder, tmp_path):
    copy = tmp_path / "elsewhere" / folder.name
    copy.mkdir(parents=True)
    for file in folder.glob("*.py"):
        (copy / file.name).write_text(file.read_text().replace("width: int = 3", "width: int = 4"))
    assert kerasdist.load_recipe(folder).config.width == 3
    assert kerasdist.load_recipe(copy).config.width == 4


def test_a_recipe_is_loaded_by_name_also_beside_a_folder_of_that_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert kerasdist.load_recipe("cifar10").path == CIFAR10
    (tmp_path / "cifar10").mkdir()  # The data, say.
    assert kerasdist.load_recipe("cifar10").path == CIFAR10


def test_a_recipe_is_loaded_by_the_config_of_a_run(folder, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    saved = {"recipe": str(folder), "settings": {"width": 7, "sizes": [4]}}
    (run / "config.json").write_text(json.dumps(saved))
    for argument in (run, run / "config.json"):
        recipe = kerasdist.load_recipe(argument)
        assert (recipe.config.width, recipe.config.sizes) == (7, (4,))
    assert kerasdist.load_recipe(run, width=1).config.width == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"widht": 3}, "setting 'widht'.*Expected one of width, sizes, rate. Did you mean 'width'"),
        ({"width": "3"}, "Received `width='3'`. Expected int"),
        ({"width": True}, "Received `width=True`"),
        ({"rate": "fast"}, "Received `rate='fast'`. Expected float | None"),
    ],
)
def test_wrong_settings_are_refused(folder, settings, message):
    with pytest.raises(KerasdistError, match=message):
        kerasdist.load_recipe(folder, **settings)


def test_settings_of_plain_types_are_accepted(folder):
    assert kerasdist.load_recipe(folder, rate=1, sizes=[3]).config.rate == 1
    assert kerasdist.load_recipe(folder, rate=None).config.rate is None


def test_wrong_recipes_are_refused(folder, tmp_path):
    def refused(recipe, message):
        with pytest.raises(KerasdistError, match=message):
            kerasdist.load_recipe(recipe).build_data("train")

    refused("cifar", "Received the recipe 'cifar'.*cifar10.*Did you mean 'cifar10'")
    refused(tmp_path / "nowhere", "Expected a folder with config.py")
    (folder / "data.py").unlink()
    refused(folder, r"without data\.py")
    (folder / "data.py").write_text("")
    refused(folder, "has no function `build_data` in its data.py")

    empty = tmp_path / "empty"
    empty.mkdir()
    for part in PARTS:
        (empty / f"{part}.py").write_text("Config = 3")
    refused(empty, "has no dataclass `Config`")
    broken = tmp_path / "broken"
    broken.mkdir()
    for part in PARTS:
        (broken / f"{part}.py").write_text("1 / 0")
    refused(broken, "config.py cannot be imported: ZeroDivisionError: division by zero")

    for content in ("{", "[]", "{}", '{"recipe": "cifar10"}'):
        (tmp_path / "config.json").write_text(content)
        refused(tmp_path / "config.json", "not the config.json of a run")
    bare = {"model": "f.py:M", "model_arguments": {}, "data": "f.py:D", "data_arguments": {}}
    (tmp_path / "config.json").write_text(json.dumps(bare))
    refused(tmp_path / "config.json", "run of a model and a provider")
    removed = {"recipe": "cifar10", "settings": {"colour": 1}}
    (tmp_path / "config.json").write_text(json.dumps(removed))
    refused(tmp_path / "config.json", "setting 'colour'")


def test_a_setting_without_default_must_be_given(folder):
    config = folder / "config.py"
    config.write_text(config.read_text().replace("width: int = 3", "width: int"))
    with pytest.raises(KerasdistError, match="no `width`"):
        kerasdist.load_recipe(folder)
    assert kerasdist.load_recipe(folder, width=2).config.width == 2


def test_the_wheel_carries_the_recipes(tmp_path):
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    done = subprocess.run(
        [*pip, "wheel", "--no-deps", "-w", tmp_path, ROOT], capture_output=True, text=True
    )
    if "No matching distribution found for hatchling" in done.stderr:
        pytest.skip("needs a package index to build the wheel with hatchling")
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    target = tmp_path / "installed"
    subprocess.run([*pip, "install", "--no-deps", "--target", target, wheel], check=True)
    program = (
        "import kerasdist\n"
        "recipe = kerasdist.load_recipe('cifar10', source='synthetic', num_train=20)\n"
        "print(kerasdist.__file__, recipe.path, len(recipe.build_data('train')['label']))\n"
    )
    environment = {k: v for k, v in os.environ.items() if k != "KERASDIST_LOGICAL_CPUS"}
    environment["PYTHONPATH"] = str(target)
    away = {"cwd": tmp_path, "env": environment, "text": True, "check": True}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, **away)
    package = target / "kerasdist"
    assert (package / "py.typed").is_file()  # Type checkers use kerasdist's types.
    assert done.stdout.split() == [f"{package}/__init__.py", f"{package}/bundled/cifar10", "20"]
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            *["kerasdist", "fit", "cifar10", "--source", "synthetic", "--dry-run"],
        ],
        capture_output=True,
        **away,
    )
    assert "nothing was kept" in done.stdout


@pytest.fixture
def with_presets(folder):
    (folder / "config.py").write_text(
        "from dataclasses import dataclass\nfrom typing import Literal\n\n"
        "PRESETS = {'small': {'width': 3}, 'large': {'width': 30, 'epochs': 2}}\n\n\n"
        "@dataclass(frozen=True)\nclass Config:\n    preset: Literal['small', 'large'] = 'small'\n"
        "    width: int = 1\n    epochs: int = 1\n    rate: float = 0.5\n"
    )
    return folder


def test_a_preset_sets_what_is_not_given(with_presets):
    def load(**settings):
        config = kerasdist.load_recipe(with_presets, **settings).config
        return config.preset, config.width, config.epochs, config.rate

    assert load() == ("small", 3, 1, 0.5)
    assert load(preset="large") == ("large", 30, 2, 0.5)
    assert load(preset="large", width=4, rate=1.0) == ("large", 4, 2, 1.0)
    with pytest.raises(KerasdistError, match="Did you mean 'large'"):
        load(preset="larg")


def test_a_preset_is_an_option_that_changes_the_defaults(with_presets, tmp_path, capsys):
    def parse(*argv):
        return fit_arguments.parse_fit([str(with_presets), *argv])

    assert parse().settings["width"] == 3
    parsed = parse("--preset", "large", "--rate", "2")
    assert (parsed.settings["width"], parsed.settings["rate"]) == (30, 2.0)
    assert parsed.run["epochs"] == 2
    assert parse("--preset=large", "--width", "5").settings["width"] == 5
    with pytest.raises(SystemExit):
        parse("--preset", "large", "--help")
    assert re.search(r"--width INT\s+\(default: 30\)", capsys.readouterr().out)
    with pytest.raises(KerasdistError, match="Expected one of small, large"):
        parse("--preset", "huge")


def test_a_setting_that_a_recipe_leaves_open_is_the_commands(folder):
    (folder / "config.py").write_text(
        "from dataclasses import dataclass\n\n\n@dataclass(frozen=True)\nclass Config:\n"
        "    steps: int | None = None\n    ema: float | None = None\n"
    )
    verify = fit_arguments.parse_fit([str(folder)], "kerasdist verify", options.VERIFY_OPTIONS)
    assert (verify.run["steps"], verify.settings["steps"]) == (5, 5)
    assert (verify.run["ema"], verify.settings["ema"]) == (None, None)
    fit = fit_arguments.parse_fit([str(folder)])
    assert (fit.run["steps"], fit.settings["steps"]) == (None, None)


def test_a_run_keeps_its_preset(with_presets, tmp_path):
    saved = {"recipe": str(with_presets), "settings": {"preset": "large", "width": 7}}
    (tmp_path / "config.json").write_text(json.dumps(saved))
    again = fit_arguments.parse_fit([str(tmp_path / "config.json")])
    assert (again.settings["preset"], again.settings["width"]) == ("large", 7)
    with pytest.raises(KerasdistError, match="trained with the preset 'large'"):
        fit_arguments.parse_fit([str(tmp_path / "config.json"), "--preset", "small"])


def test_an_edited_recipe_is_imported_anew(tmp_path):
    folder = classifier_recipe.write(tmp_path / "small")
    first = kerasdist.load_recipe(folder)
    assert kerasdist.load_recipe(folder).config.__class__ is first.config.__class__
    config = folder / "config.py"
    config.write_text(config.read_text().replace("batch_size: int = 16", "batch_size: int = 160"))
    assert kerasdist.load_recipe(folder).config.batch_size == 160
    assert first.config.batch_size == 16
