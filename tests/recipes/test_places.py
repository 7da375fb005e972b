"""What a command's first word may be: a recipe, a run, or a path with data."""

import json

import pytest

import kerasdist
from kerasdist import KerasdistError
from kerasdist.recipes import places
from kerasdist.recipes.recipe import settings_of
from tests.own_data import write_images


@pytest.fixture
def photos(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return write_images(tmp_path / "photos", 5)


def test_a_path_with_data_has_the_recipe_for_its_kind(photos):
    place = places.find("photos/")
    assert (place.path, place.name, place.is_data) == (places.templates()["image"], "photos", True)
    assert place.settings == {"data_dir": str(photos)}


def test_a_path_wins_over_a_bundled_recipe_and_says_so(photos, capsys):
    photos.rename(photos.parent / "cifar10")
    assert places.find("cifar10").is_data
    told = capsys.readouterr().err
    assert told.startswith(f"kerasdist: 'cifar10' is the folder {str(photos.parent / 'cifar10')!r}")
    assert places.find("cifar10").is_data
    assert capsys.readouterr().err == ""  # Once is enough.
    assert places.find("kerasdist:cifar10") == places.Place(places.bundled()["cifar10"], "cifar10")
    with pytest.raises(KerasdistError, match=r"'kerasdist:cifar'.*Did you mean 'cifar10'"):
        places.find("kerasdist:cifar")
    with pytest.raises(KerasdistError, match=r"'template:imag'.*Did you mean 'image'"):
        places.find("template:imag")


def test_a_mistyped_folder_is_guessed(photos):
    with pytest.raises(KerasdistError, match=r"recipe 'photo'\..*Did you mean 'photos'"):
        places.find("photo")


@pytest.mark.parametrize("name", ["nope.csv", "nope.PNG", "nowhere/photos", "photo/"])
def test_a_path_of_nothing_is_said_not_to_exist(name, photos):
    with pytest.raises(KerasdistError) as error:
        places.find(name)
    assert str(error.value).startswith(f"The file or folder {name!r} does not exist. Expected ")


def test_a_file_with_a_similar_name_is_guessed(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "people.csv").write_text("a,b")
    with pytest.raises(KerasdistError, match=r"Did you mean 'people\.csv'\?"):
        places.find("poeple.csv")


def test_a_folder_of_something_else_leaves_the_name_to_the_recipe(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cifar10").mkdir()
    (tmp_path / "cifar10" / "data_batch_1.bin").write_bytes(b"x")
    assert places.find("cifar10").path == places.bundled()["cifar10"]


def test_a_run_of_a_bundled_recipe_finds_it_beside_such_a_folder(photos, tmp_path):
    photos.rename(tmp_path / "cifar10")
    (tmp_path / "config.json").write_text(json.dumps({"recipe": "cifar10", "settings": {}}))
    assert places.find("config.json").path == places.bundled()["cifar10"]


def test_what_was_learnt_is_saved_and_not_learnt_again(photos, tmp_path):
    recipe = kerasdist.load_recipe("photos")
    assert recipe.name == "photos"
    assert recipe.config.class_names == ("bar", "disc", "ring")
    assert (recipe.config.shape, recipe.config.num_train) == ((24, 28), 12)
    assert places.reference_to(recipe.path) == "template:image"
    saved = {"recipe": "template:image", "name": "photos", "settings": settings_of(recipe.config)}
    (tmp_path / "config.json").write_text(json.dumps(saved))
    photos.rename(tmp_path / "gone")
    again = kerasdist.load_recipe("config.json")
    assert (again.name, again.config) == (recipe.name, recipe.config)
    assert again.build_model().output_shape == (None, 3)


def test_a_recipe_that_learns_must_return_what_it_learnt(tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    for part in ("data", "model"):
        (folder / f"{part}.py").write_text("")
    (folder / "config.py").write_text(
        "from dataclasses import dataclass, field\n\n\n@dataclass(frozen=True)\nclass Config:\n"
        "    names: tuple = field(default=(), metadata={'learnt': True})\n\n\n"
        "def learn(config):\n    return {}\n"
    )
    with pytest.raises(KerasdistError, match=r"from `learn` of the recipe 'mine'.*with names"):
        kerasdist.load_recipe(folder)
