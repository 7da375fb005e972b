"""What a command's first word may be: a recipe, a run, or a path with data."""

import json

import pytest

import kerasdist
from kerasdist import KerasdistError
from kerasdist.cli.fit_arguments import parse_fit
from kerasdist.recipes import places
from kerasdist.recipes.recipe import settings_of
from tests.own_data import write_images
from tests.own_tables import write_table


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


@pytest.mark.parametrize("content", ['{"architectures": ["ViT"], "model": "x"}', "[1]", "{"])
def test_a_folder_of_data_may_have_a_config_json(photos, content):
    """As folders from Hugging Face do."""
    (photos / "config.json").write_text(content)
    assert places.find("photos").is_data
    assert parse_fit(["photos"]).settings["class_names"] == ("bar", "disc", "ring")
    with pytest.raises(KerasdistError, match=r"not the config\.json of a run"):
        places.find("photos/config.json")


def test_a_folder_with_a_broken_config_json_alone_is_said_to_be_no_run(tmp_path):
    (tmp_path / "config.json").write_text("{")
    (tmp_path / "curve.png").write_bytes(b"")
    with pytest.raises(KerasdistError, match=r"not the config\.json of a run"):
        places.find(tmp_path)


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


def run_of(recipe, place):
    """A run's config.json with the settings of a recipe."""
    saved = {"kerasdist": "0", "recipe": places.reference_to(recipe.path)}
    saved |= {"name": recipe.name, "settings": settings_of(recipe.config)}
    (place / "config.json").write_text(json.dumps(saved))
    return str(place / "config.json")


def test_a_run_of_a_table_that_is_trained_again_learns_other_columns(tmp_path):
    rows = [(20 + i % 40, i % 7, "fm"[i % 2], "ny"[i % 3 == 0]) for i in range(200)]
    write_table(tmp_path / "people.csv", ("age", "fare", "sex", "survived"), rows)
    first = kerasdist.load_recipe(tmp_path / "people.csv", target="survived")
    run = run_of(first, tmp_path)

    def again(*argv):
        return parse_fit([run, *argv]).settings

    assert again("--learning-rate", "0.1")["schema"] == first.config.schema
    found = again("--ignore", "fare", "--target", "age")
    expected = kerasdist.load_recipe(tmp_path / "people.csv", ignore=("fare",), target="age")
    assert found["schema"] == expected.config.schema
    assert (found["class_names"], found["target"]) == (expected.config.class_names, "age")
    assert found["units"] == first.config.units  # What does not change, stays.
    found = again("--categories", "age")
    assert found["schema"] != first.config.schema
    found = again("--validation-split", "0.5")
    assert (found["num_train"], first.config.num_train) == (100, 160)
    with pytest.raises(KerasdistError, match=r"'nope'"):
        again("--ignore", "nope")
    # In Python, too.
    assert kerasdist.load_recipe(run, target="age").config.target == "age"
    assert kerasdist.load_recipe(run, target="age").config.class_names == ()


def test_a_run_of_a_table_keeps_its_columns_with_other_rows(tmp_path):
    """So the weights of the run still fit."""
    rows = [(i, "abc"[i % 3], "ny"[i % 2]) for i in range(100)]
    write_table(tmp_path / "first.csv", ("age", "letter", "label"), rows)
    write_table(tmp_path / "more.csv", ("age", "letter", "label"), [*rows[::-1], *rows])
    first = kerasdist.load_recipe(tmp_path / "first.csv")
    run = run_of(first, tmp_path)
    found = parse_fit([run, "--data-dir", str(tmp_path / "more.csv")]).settings
    assert found["schema"] == first.config.schema
    # A hash of each row decides, with the limits of the run's split: about 80%.
    assert first.config.num_train == 80
    assert 140 < found["num_train"] < 180


def test_a_run_of_images_counts_again_and_takes_the_size_of_a_backbone(photos, tmp_path):
    first = kerasdist.load_recipe("photos")
    run = run_of(first, tmp_path)
    assert (first.config.num_train, first.config.shape) == (12, (24, 28))
    more = write_images(tmp_path / "more", 10)
    # By the limits of the run's split: what was trained on stays for training.
    assert parse_fit([run, "--data-dir", str(more)]).settings["num_train"] == 23
    assert parse_fit([run, "--data-dir", str(more)], learns_again=False).settings["num_train"] == 12
    assert parse_fit([run, "--validation-split", "0.6"]).settings["num_train"] == 6
    found = parse_fit([run, "--backbone", "mobilenet_v3_small"]).settings
    assert found["shape"] == (224, 224)
    assert parse_fit([run, "--image-size", "40"]).settings["shape"] == (40, 40)
    options = ["--backbone", "mobilenet_v3_small", "--weights", "x", "--freeze", "2"]
    with pytest.raises(KerasdistError, match="nothing would be unfrozen"):
        parse_fit([run, *options, "--epochs", "2"])
    # A class that the run does not know.
    (more / "disc").rename(more / "star")
    with pytest.raises(KerasdistError, match="has the class 'star'"):
        parse_fit([run, "--data-dir", str(more)])


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


def test_a_run_of_a_python_program_is_named_as_one(tmp_path):
    run = tmp_path / "fit-02"
    run.mkdir()
    (run / "config.json").write_text(json.dumps({"kerasdist": "0.1", "batch_size": 8, "seed": 1}))
    for given in (run, run / "config.json"):
        with pytest.raises(KerasdistError, match="A Python program made the run") as error:
            places.saved_config(given)
        assert f"use `kerasdist.evaluate({str(run)!r}, x, y)`" in str(error.value)
