"""Which kind of data a path holds."""

import pytest

from kerasdist import KerasdistError
from kerasdist.recipes import places
from kerasdist.recipes.own_data.kinds import IMAGES, KINDS, SOUNDS, look
from tests.recipes.own_data.test_class_folders import write


def test_each_kind_has_a_template():
    assert {kind.recipe for kind in KINDS} <= set(places.templates())


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["a/1.PNG", "b/2.webp"], IMAGES),
        (["train/a/1.wav", "train/b/1.WAV"], SOUNDS),
        ([*(f"a/{i}.wav" for i in range(20)), "a/cover.jpg", "notes.md"], SOUNDS),
    ],
)
def test_a_folder_is_known_by_its_files(tmp_path, names, kind):
    assert look(write(tmp_path, *names)) == kind


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "'.*data' is empty. Expected a recipe .* or one folder of .*images"),
        (["a/1.mp3", "b/2.mp3"], r"holds no files that kerasdist can train on \(.mp3\)"),
        (["a/1.png", "b/1.wav"], "holds 1 images and 1 WAV files. Expected one kind"),
    ],
)
def test_other_folders_are_refused(tmp_path, names, message):
    (tmp_path / "data").mkdir()
    with pytest.raises(KerasdistError, match=message):
        look(write(tmp_path / "data", *names))


@pytest.mark.parametrize(
    ("name", "hint"),
    [("cat.jpg", "Name the folder that holds the folders"), ("pets.zip", "Unpack it")],
)
def test_a_file_is_refused(tmp_path, name, hint):
    write(tmp_path, name)
    with pytest.raises(KerasdistError, match=f"{name}' is a file that kerasdist cannot.*{hint}"):
        look(tmp_path / name)
