"""Loading recipes, and the CIFAR-10 recipe itself."""

import dataclasses
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import KerasdistError
from kerasdist.cli import fit_arguments, main, options
from kerasdist.recipes import public_data
from kerasdist.recipes import recipe as recipes
from tests import classifier_recipe

ROOT = Path(__file__).resolve().parents[2]
CIFAR10 = ROOT / "recipes" / "cifar10"


# Loading.


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
    assert recipes.summary(folder) == "A model of nothing."


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
    refused(folder, "data.py has no function `build_data`")

    empty = tmp_path / "empty"
    empty.mkdir()
    for part in recipes.PARTS:
        (empty / f"{part}.py").write_text("Config = 3")
    refused(empty, "has no dataclass `Config`")
    broken = tmp_path / "broken"
    broken.mkdir()
    for part in recipes.PARTS:
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


# The data of CIFAR-10.


@pytest.fixture(scope="module")
def data():
    """The recipe's data.py."""
    return recipes._import_part(CIFAR10, "data")


@pytest.fixture(scope="module")
def synthetic():
    recipe = kerasdist.load_recipe("cifar10", source="synthetic", num_train=3000)
    return recipe.build_data("train"), recipe.build_data("validation")


def test_the_synthetic_set_has_the_shape_of_cifar10(synthetic):
    for split, size in zip(synthetic, (3000, 2000), strict=True):
        assert split["image"].shape == (size, 32, 32, 3)
        assert split["image"].dtype == np.uint8
        assert split["label"].dtype == np.int64
        assert np.bincount(split["label"]).tolist() == [size // 10] * 10
        assert split["image"].min() < 20
        assert split["image"].max() > 235


def test_the_synthetic_set_is_a_function_of_its_seed_alone(synthetic):
    def first(**settings):
        recipe = kerasdist.load_recipe(
            "cifar10", source="synthetic", num_train=3000, num_validation=10, **settings
        )
        return recipe.build_data("train")

    for settings in ({}, {"seed": 3}):
        again = first(**settings)
        assert all(np.array_equal(synthetic[0][k], again[k]) for k in ("image", "label"))
    assert not np.array_equal(synthetic[0]["image"], first(synthetic_seed=1)["image"])


def test_no_synthetic_image_is_in_both_splits():
    sizes = {"num_train": 500, "num_validation": 500}
    recipe = kerasdist.load_recipe("cifar10", source="synthetic", **sizes)
    train, validation = (
        {image.tobytes() for image in recipe.build_data(split)["image"]}
        for split in ("train", "validation")
    )
    assert len(train) == len(validation) == 500
    assert not train & validation


def test_the_mean_colour_does_not_tell_the_class(synthetic):
    """The nearest class mean, of the mean colour and of its spread: chance is 10%."""
    train, validation = synthetic
    for features in (lambda i: i.mean((1, 2)), lambda i: i.std((1, 2))):
        known, asked = (features(s["image"].astype("f")) for s in synthetic)
        centres = np.stack([known[train["label"] == c].mean(0) for c in range(10)])
        nearest = np.argmin(((asked[:, None] - centres) ** 2).sum(-1), axis=1)
        assert np.mean(nearest == validation["label"]) < 0.2


@pytest.fixture
def files(tmp_path, data):
    """A folder of CIFAR-10's form with two images a file; returns it and what is in it."""
    random = np.random.default_rng(0)
    images, labels = {}, {}
    (tmp_path / "cifar-10-batches-bin").mkdir()
    for number, name in enumerate(data.ALL_FILES):
        images[name] = random.integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
        labels[name] = [number % 10, 9]
        records = b"".join(
            bytes([label]) + image.transpose(2, 0, 1).tobytes()
            for label, image in zip(labels[name], images[name], strict=True)
        )
        (tmp_path / "cifar-10-batches-bin" / name).write_bytes(records)
    return tmp_path, images, labels


def test_binary_files_are_read_in_their_order(files, data):
    folder, images, labels = files
    for given in (folder, folder / "cifar-10-batches-bin"):
        recipe = kerasdist.load_recipe("cifar10", data_dir=str(given))
        assert recipe.source() == "files"
        for split, names in data.FILES.items():
            found = recipe.build_data(split)
            np.testing.assert_array_equal(
                found["image"], np.concatenate([images[name] for name in names])
            )
            assert found["label"].tolist() == [x for name in names for x in labels[name]]
            assert (found["image"].dtype, found["label"].dtype) == (np.uint8, np.int64)


def test_damaged_binary_files_are_refused_by_name(files):
    folder, _, _ = files
    recipe = kerasdist.load_recipe("cifar10", data_dir=str(folder))
    path = folder / "cifar-10-batches-bin" / "data_batch_3.bin"
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    with pytest.raises(KerasdistError, match=r"_3\.bin.*, whose record 1 .* 3072 bytes"):
        recipe.build_data("train")
    path.write_bytes(b"")
    with pytest.raises(KerasdistError, match=r"data_batch_3\.bin' of 0 bytes"):
        recipe.build_data("train")
    path.write_bytes(whole[:3073] + bytes([10]) + whole[3074:])
    with pytest.raises(KerasdistError, match=r"_3\.bin.* record 1 \(from 0\) has the label 10"):
        recipe.build_data("train")
    path.unlink()
    with pytest.raises(KerasdistError, match=r"without data_batch_3\.bin"):
        recipe.build_data("train")
    assert len(recipe.build_data("validation")["label"]) == 2


@pytest.mark.parametrize("source", ["auto", "files", "tfds"])
def test_a_data_dir_without_data_is_an_error_and_no_fallback(tmp_path, source):
    for data_dir, found in ((tmp_path, "no CIFAR-10 in it"), (tmp_path / "no", "not a folder")):
        recipe = kerasdist.load_recipe("cifar10", data_dir=str(data_dir), source=source)
        with pytest.raises(KerasdistError, match=re.escape(str(data_dir)) + f".*{found}"):
            recipe.source()
        with pytest.raises(KerasdistError, match=found):
            recipe.build_data("train")


def test_files_need_a_folder_and_splits_a_name():
    with pytest.raises(KerasdistError, match="without `data_dir`"):
        kerasdist.load_recipe("cifar10", source="files").source()
    with pytest.raises(KerasdistError, match="Received `split` 'test'"):
        kerasdist.load_recipe("cifar10", source="synthetic").build_data("test")
    with pytest.raises(KerasdistError, match="`source='web'`"):
        kerasdist.load_recipe("cifar10", source="web")


def test_the_real_files_are_the_real_cifar10(shared_data):
    recipe = kerasdist.load_recipe("cifar10", data_dir=shared_data)
    assert recipe.source() == "files"
    train, validation = recipe.build_data("train"), recipe.build_data("validation")
    assert train["image"].shape == (50000, 32, 32, 3)
    assert validation["image"].shape == (10000, 32, 32, 3)
    for split in (train, validation):
        assert np.ptp(np.bincount(split["label"])) == 0
    means = train["image"].mean((0, 1, 2)) / 255
    np.testing.assert_allclose(means, [0.4914, 0.4822, 0.4465], atol=5e-5)


@pytest.fixture
def no_network(tmp_path, monkeypatch, data):
    """Nothing prepared, and a server that accepts and never answers."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    public_data._download.cache_clear()
    public_data._warn_synthetic.cache_clear()
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/cifar.tar.gz"
        monkeypatch.setattr(data, "CIFAR10", dataclasses.replace(data.CIFAR10, url=url))
        yield url
    public_data._download.cache_clear()
    public_data._warn_synthetic.cache_clear()


def test_without_a_network_synthetic_data_takes_over_in_seconds_with_one_warning(
    no_network, tmp_path, monkeypatch, capfd
):
    monkeypatch.chdir(tmp_path)
    began = time.perf_counter()
    assert kerasdist.load_recipe("cifar10").source() == "synthetic"
    assert time.perf_counter() - began < 10
    small = "--steps 1 --batch-size 8 --num-train 16 --num-validation 8 --crop-size 8 --quiet"
    assert main.main(["fit", "cifar10", *small.split()]) == 0
    warnings = capfd.readouterr().err
    assert warnings.count("THIS IS NOT CIFAR-10") == 1
    assert f"{no_network} " in warnings
    result = json.loads((tmp_path / "runs/cifar10/0001/result.json").read_text())
    assert result["dataset"] == "synthetic"
    assert {"loss", "accuracy", "val_loss", "val_accuracy"} < set(result)
    with pytest.raises(KerasdistError, match="Received `source` 'tfds'"):
        kerasdist.load_recipe("cifar10", source="tfds").source()


def test_asking_for_synthetic_data_is_no_reason_to_warn(no_network, capfd):
    assert kerasdist.load_recipe("cifar10", source="synthetic").source() == "synthetic"
    assert capfd.readouterr().err == ""


# Presets.


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


# The network of CIFAR-10.


@pytest.fixture(scope="module")
def model():
    """Built on four synthetic images."""
    keras.utils.set_random_seed(1)
    recipe = kerasdist.load_recipe("cifar10", preset="tutorial", source="synthetic", num_train=40)
    built = recipe.build_model()
    kerasdist.evaluate(built, recipe.build_data("train"))
    return built


def test_the_layers_are_the_tutorials(model):
    layers = {layer.name: layer for layer in model.layers}
    assert " ".join(layers) == ("conv1 pool1 norm1 conv2 norm2 pool2 flatten dense1 dense2 logits")
    shapes = {n: layer.kernel.shape for n, layer in layers.items() if hasattr(layer, "kernel")}
    assert shapes == {
        "conv1": (5, 5, 3, 64),
        "conv2": (5, 5, 64, 64),
        "dense1": (6 * 6 * 64, 384),
        "dense2": (384, 192),
        "logits": (192, 10),
    }
    for name in ("pool1", "pool2"):
        assert (layers[name].pool_size, layers[name].strides) == ((3, 3), (2, 2))
        assert layers[name].padding == "same"
    assert model(np.zeros((2, 32, 32, 3), "uint8")).shape == (2, 10)
    activations = {n: layer.activation.__name__ for n, layer in layers.items() if n in shapes}
    assert activations == dict.fromkeys(shapes, "relu") | {"logits": "linear"}


def test_initial_values_are_the_tutorials(model):
    layers = {layer.name: layer for layer in model.layers}
    for name, deviation, bias in (
        ("conv1", 0.05, 0.0),
        ("conv2", 0.05, 0.1),
        ("dense1", 0.04, 0.1),
        ("dense2", 0.04, 0.1),
        ("logits", 1 / 192, 0.0),
    ):
        kernel = layers[name].kernel.numpy()
        # Cut at two deviations, which leaves 0.8796 of the deviation.
        assert np.abs(kernel).max() <= 2 * deviation
        assert kernel.std() == pytest.approx(0.8796 * deviation, rel=0.05)
        assert abs(kernel.mean()) < 0.1 * deviation
        np.testing.assert_array_equal(layers[name].bias, np.float32(bias))


def test_weight_decay_is_on_exactly_the_two_hidden_dense_layers(model):
    layers = {layer.name: layer for layer in model.layers}
    kernels = [layers[name].kernel.numpy() for name in ("dense1", "dense2")]
    expected = [0.002 * float((k.astype("float64") ** 2).sum()) for k in kernels]
    np.testing.assert_allclose(sorted(map(float, model.losses)), sorted(expected), rtol=1e-4)


def test_local_response_normalization_is_the_tutorials():
    module = recipes._import_part(CIFAR10, "model")
    x = np.random.default_rng(0).normal(size=(2, 3, 4, 16)).astype("f") * 50
    expected = np.empty_like(x)
    for channel in range(16):
        around = x[..., max(0, channel - 4) : channel + 5]
        norm = (1.0 + 0.001 / 9 * (around**2).sum(-1)) ** 0.75
        expected[..., channel] = x[..., channel] / norm
    layer = module.LocalResponseNormalization()
    np.testing.assert_allclose(layer(x), expected, rtol=1e-5)
    half = module.LocalResponseNormalization(dtype="bfloat16")(x)
    assert half.dtype == tf.bfloat16
    np.testing.assert_allclose(tf.cast(half, "float32"), expected, rtol=0.02)


def test_images_are_cropped_in_the_middle_and_standardized():
    module = recipes._import_part(CIFAR10, "model")
    image = np.random.default_rng(0).integers(0, 256, (2, 32, 32, 3), dtype=np.uint8)
    middle = module.crop(image, 24)
    np.testing.assert_array_equal(middle, image[:, 4:28, 4:28])
    found = module.standardize(middle)
    np.testing.assert_allclose(found, tf.image.per_image_standardization(middle), atol=1e-5)
    uniform = module.standardize(np.full((1, 24, 24, 3), 9, "uint8"))
    np.testing.assert_array_equal(uniform, np.zeros((1, 24, 24, 3)))
    with pytest.raises(KerasdistError, match="Expected at least 24 x 24"):
        module.crop(image[:, :20], 24)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"crop_size": 33}, "crop_size=33`. Expected 1 to 32"),
        ({"crop_size": 0}, "crop_size=0`. Expected 1 to 32"),
        ({"num_train": 0}, "num_train=0`. Expected at least 1"),
        ({"num_validation": -1}, "num_validation=-1`. Expected at least 1"),
        ({"optimizer": "adamm"}, "optimizer='adamm'`"),
    ],
)
def test_settings_out_of_range_are_refused(settings, message):
    with pytest.raises(KerasdistError, match=re.escape(message)):
        kerasdist.load_recipe("cifar10", **settings)


@pytest.mark.parametrize(
    ("name", "kind", "momentum"),
    [("adam", "Adam", None), ("momentum", "SGD", 0.9), ("sgd", "SGD", 0.0)],
)
def test_optimizers_have_the_learning_rate(name, kind, momentum):
    settings = {"optimizer": name, "momentum": momentum, "learning_rate": 0.25}
    recipe = kerasdist.load_recipe(
        "cifar10", source="synthetic", schedule="constant", weight_decay_on="kernels", **settings
    )
    optimizer = recipe.build_model().optimizer
    assert type(optimizer).__name__ == kind
    assert float(optimizer.learning_rate) == 0.25
    assert getattr(optimizer, "momentum", None) == momentum


def test_a_saved_model_gives_the_same_outputs(tmp_path):
    recipe = kerasdist.load_recipe(
        "cifar10", preset="tutorial", source="synthetic", num_train=20, crop_size=8
    )
    model, images = recipe.build_model(), recipe.build_data("train")
    kerasdist.evaluate(model, images)
    expected = model(images["image"])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.crop_size == 8
    np.testing.assert_array_equal(loaded(images["image"]), expected)


def test_an_edited_recipe_is_imported_anew(tmp_path):
    folder = classifier_recipe.write(tmp_path / "small")
    first = kerasdist.load_recipe(folder)
    assert kerasdist.load_recipe(folder).config.__class__ is first.config.__class__
    config = folder / "config.py"
    config.write_text(config.read_text().replace("batch_size: int = 16", "batch_size: int = 160"))
    assert kerasdist.load_recipe(folder).config.batch_size == 160
    assert first.config.batch_size == 16
