"""Data sets that TFDS has prepared, as its own writer makes them."""

import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import KerasdistError
from kerasdist.recipes.importing import import_part

tfds = pytest.importorskip("tensorflow_datasets")
RANDOM = np.random.default_rng(0)
IMAGES = RANDOM.integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
LABELS = np.array([3, 1, 4, 1, 5, 9])


def store(folder, name, features, splits, version="1.0.9"):
    tfds.dataset_builders.store_as_tfds_dataset(
        name=name,
        version=version,
        features=tfds.features.FeaturesDict(features),
        split_datasets=splits,
        data_dir=str(folder),
        disable_shuffling=True,
    )


@pytest.fixture(scope="module")
def cifar10(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tfds")
    features = {
        "image": tfds.features.Image(shape=(32, 32, 3)),
        "label": tfds.features.ClassLabel(num_classes=10),
    }
    splits = {
        name: tf.data.Dataset.from_tensor_slices({"image": IMAGES[rows], "label": LABELS[rows]})
        for name, rows in (("train", slice(4)), ("test", slice(4, 6)))
    }
    store(folder, "cifar10", features, splits, "3.0.2")
    return folder


@pytest.mark.parametrize("below", ["", "cifar10", "cifar10/3.0.2"])
def test_a_prepared_cifar10_is_read(cifar10, below):
    recipe = kerasdist.load_recipe("cifar10", data_dir=str(cifar10 / below))
    assert recipe.source() == "tfds"
    train, test = recipe.build_data("train"), recipe.build_data("validation")
    np.testing.assert_array_equal(train["image"], IMAGES[:4])
    np.testing.assert_array_equal(test["image"], IMAGES[4:])
    assert train["label"].tolist() == [3, 1, 4, 1]
    assert import_part(recipe.path, "data").num_examples(recipe.config) == 4


def test_a_prepared_folder_is_found_where_tfds_keeps_it(cifar10, monkeypatch):
    monkeypatch.setenv("TFDS_DATA_DIR", str(cifar10))
    assert kerasdist.load_recipe("cifar10").source() == "tfds"


def test_a_prepared_folder_comes_before_the_cache(cifar10, monkeypatch, tmp_path):
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    monkeypatch.setenv("KERASDIST_DATA_DIR", str(tmp_path / "cache"))
    data = import_part(kerasdist.load_recipe("cifar10").path, "data")
    folder = data.CIFAR10.archive().folder / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    (folder / "test_batch.bin").write_bytes(bytes(data.RECORD_BYTES))
    # TFDS has nothing prepared, and could download it. What was downloaded already comes first.
    assert data.CIFAR10.locate("auto", None) == ("files", folder)
    monkeypatch.setenv("TFDS_DATA_DIR", str(cifar10))
    assert data.CIFAR10.locate("auto", None) == ("tfds", cifar10 / "cifar10" / "3.0.2")
    assert data.CIFAR10.locate("files", None) == ("files", folder)


def test_a_damaged_prepared_folder_is_named(cifar10):
    folder = cifar10 / "cifar10" / "3.0.2"
    (records,) = folder.glob("*test*record*")
    whole = records.read_bytes()
    records.write_bytes(whole[: len(whole) // 2])
    recipe = kerasdist.load_recipe("cifar10", data_dir=str(cifar10))
    with pytest.raises(KerasdistError, match="TFDS cannot read"):
        recipe.build_data("validation")
    records.write_bytes(whole)
    assert len(recipe.build_data("validation")["label"]) == 2


def test_the_official_split_of_spoken_digits_is_rebuilt(tmp_path):
    names = [f"{d}_{s}_{i}.wav" for s in ("theo", "ann") for d in (7, 2) for i in (10, 4, 9, 0)]
    clips = [RANDOM.integers(-3000, 3000, 800 + 80 * i) for i in range(len(names))]

    def examples():
        for name, clip in zip(names, clips, strict=True):
            yield {"audio": clip, "audio/filename": name, "label": int(name[0])}

    signature = {
        "audio": tf.TensorSpec((None,), tf.int64),
        "audio/filename": tf.TensorSpec((), tf.string),
        "label": tf.TensorSpec((), tf.int64),
    }
    features = {
        "audio": tfds.features.Audio(sample_rate=8000, shape=(None,), dtype=np.int64),
        "audio/filename": tfds.features.Text(),
        "label": tfds.features.ClassLabel(num_classes=10),
    }
    rows = tf.data.Dataset.from_generator(examples, output_signature=signature)
    store(tmp_path, "spoken_digit", features, {"train": rows})
    recipe = kerasdist.load_recipe("audio", data_dir=str(tmp_path))
    assert recipe.source() == "tfds"
    train, test = recipe.build_data("train"), recipe.build_data("validation")
    # In the order of the names, as from files: 2 before 7, ann before theo, 10 before 9.
    expected = sorted(n for n in names if int(n.split("_")[2][:-4]) < 5)
    assert test.lengths.tolist() == [10 + names.index(name) for name in expected]
    assert test.others["label"].tolist() == [int(name[0]) for name in expected]
    assert len(train) == 8
    assert import_part(recipe.path, "data").build_groups(recipe.config, "validation") == {
        "speaker": [name.split("_")[1] for name in expected]
    }
