"""The data that example scripts receive instead of downloads."""

import urllib.error
import zipfile

import pandas as pd
import pytest

from tests.keras_examples.synthetic import downloads, keras_parts, tfds_parts


def test_every_file_can_be_made():
    for name in downloads.FILES:
        assert downloads.content_of(f"https://example.org/folder/{name}?raw=true")


def test_an_unknown_download_is_refused():
    with pytest.raises(urllib.error.URLError, match="nothing is made up for"):
        downloads.urlopen("https://example.org/other.csv")


def test_a_table_is_read_from_an_address(monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", downloads.urlopen)
    table = pd.read_csv("https://example.org/heart.csv")
    assert set(table["target"]) == {0, 1}


def test_an_archive_is_retrieved(tmp_path):
    path, _ = downloads.urlretrieve("https://example.org/spa-eng.zip", str(tmp_path / "a.zip"))
    assert zipfile.ZipFile(path).namelist() == ["spa-eng/spa.txt"]


@pytest.mark.parametrize("name", sorted(keras_parts.DATASETS))
def test_keras_data_sets_have_their_form(name):
    (x_train, y_train), (x_test, y_test) = keras_parts.DATASETS[name]()
    assert len(x_train) == len(y_train) > len(x_test) == len(y_test)


def test_a_data_set_has_splits_and_information():
    (train, test), information = tfds_parts.load(
        "cifar10", split=["train", "test"], as_supervised=True, with_info=True
    )
    image, _ = next(iter(train))
    assert image.shape == (32, 32, 3)
    assert information.features["label"].num_classes == 10
    assert test.element_spec == train.element_spec
