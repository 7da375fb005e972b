"""The data of the CIFAR-10 recipe: files, synthetic images, and what happens without a network."""

import dataclasses
import json
import re
import socket
import time
from pathlib import Path

import numpy as np
import pytest

import kerasdist
from kerasdist import KerasdistError
from kerasdist.cli import main
from kerasdist.recipes import public_data
from kerasdist.recipes.importing import import_part

ROOT = Path(__file__).resolve().parents[2]
CIFAR10 = ROOT / "recipes" / "cifar10"


@pytest.fixture(scope="module")
def data():
    """The recipe's data.py."""
    return import_part(CIFAR10, "data")


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


def test_splits_and_sources_need_a_known_name():
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
    monkeypatch.setenv("KERASDIST_DATA_DIR", str(tmp_path / "cache"))
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


def test_files_need_a_folder_or_a_network(no_network, tmp_path):
    expected = rf"without `data_dir`, but {tmp_path}/cache does not .* {no_network} did not answer"
    with pytest.raises(KerasdistError, match=expected):
        kerasdist.load_recipe("cifar10", source="files").source()


def test_asking_for_synthetic_data_is_no_reason_to_warn(no_network, capfd):
    assert kerasdist.load_recipe("cifar10", source="synthetic").source() == "synthetic"
    assert capfd.readouterr().err == ""
