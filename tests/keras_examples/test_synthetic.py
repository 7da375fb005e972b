"""The data that example scripts receive instead of downloads."""

import urllib.error
import zipfile

import pytest

from tests.keras_examples import working_folder
from tests.keras_examples.synthetic import downloads, keras_parts, tfds_parts

pd = pytest.importorskip("pandas")


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


def test_a_jump_lasts_longer_than_a_day(monkeypatch):
    monkeypatch.setattr("urllib.request.urlopen", downloads.urlopen)
    noise = pd.read_csv("https://example.org/art_daily_small_noise.csv")["value"]
    jump = pd.read_csv("https://example.org/art_daily_jumpsup.csv")["value"]
    assert (jump > noise.max()).sum() > 288


def test_only_the_folders_that_a_script_names_are_made(tmp_path):
    working_folder.fill(tmp_path, "captcha_images_v2")
    assert [path.name for path in tmp_path.iterdir()] == ["captcha_images_v2"]
    working_folder.fill(tmp_path, "PetImages, annotations/trimaps")
    assert len(list(tmp_path.glob("images/*.jpg"))) == len(list(tmp_path.rglob("trimaps/*.png")))
    assert len(list(tmp_path.glob("PetImages/*"))) == 2
