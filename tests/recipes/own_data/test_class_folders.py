"""The classes, files and splits of a folder, and which folders are refused."""

import os
import unicodedata

import pytest

from kerasdist import KerasdistError
from kerasdist.recipes.own_data import class_folders
from kerasdist.recipes.own_data.kinds import IMAGES


def write(folder, *names):
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return folder


def read(folder, **options):
    return class_folders.read(folder, IMAGES, **options)


@pytest.fixture
def pets(tmp_path):
    names = [f"{pet}/{i}.jpg" for pet in ("cats", "dogs") for i in range(10)]
    return write(tmp_path / "pets", *names)


def test_a_part_of_each_class_is_for_validation(pets):
    found = read(pets)
    assert found.class_names == ("cats", "dogs")
    assert (found.counts("train"), found.counts("validation")) == ([8, 8], [2, 2])
    assert "test" not in found.splits
    both = {*found.splits["train"].names, *found.splits["validation"].names}
    assert len(both) == 20


def test_the_split_is_a_function_of_names_and_seed(pets, tmp_path):
    first = read(pets).splits["validation"].names
    moved = tmp_path / "elsewhere"
    os.rename(pets, moved)
    assert read(moved).splits["validation"].names == first
    assert read(moved, seed=1).splits["validation"].names != first
    write(moved, "cats/new.jpg")
    later = read(moved).splits["validation"].names
    assert len({*later} & {*first}) >= len(first) - 1  # One more file moves at most one.


@pytest.mark.parametrize("change", ["grown", "shrunk"])
def test_files_keep_their_split_when_a_folder_changes(pets, change):
    first = read(pets)
    if change == "grown":
        write(pets, *(f"cats/new{i}.jpg" for i in range(60)))
    else:
        for i in range(6):
            (pets / "cats" / f"{i}.jpg").unlink()
    names = {"class_names": first.class_names}
    found = read(pets, drawn=first.drawn, **names)
    for one, other in (("train", "validation"), ("validation", "train")):
        assert not {*first.splits[one].names} & {*found.splits[other].names}
    assert found.drawn == first.drawn
    # What was drawn for another part, or with another seed, says nothing.
    for others in ({"seed": 1}, {"validation_split": 0.5}):
        expected = read(pets, **others)
        assert read(pets, drawn=first.drawn, **names, **others) == expected
        assert expected.drawn != first.drawn


def test_the_split_of_other_classes_is_refused(pets):
    drawn = read(pets).drawn
    write(pets, "birds/1.jpg", "birds/2.jpg")
    with pytest.raises(KerasdistError, match=r"a `split` of 2 classes for 3: birds, cats, dogs"):
        read(pets, drawn=drawn)


def test_nothing_is_drawn_beside_a_folder_for_validation(pets, tmp_path):
    assert read(pets, validation_split=0).drawn is None
    names = [f"{split}/{pet}/1.png" for split in ("train", "val") for pet in "ab"]
    assert read(write(tmp_path / "parts", *names), drawn=read(pets).drawn).drawn is None


def test_folders_for_splits(tmp_path):
    names = [f"{split}/{pet}/1.png" for split in ("Training", "valid", "test") for pet in "ab"]
    found = read(write(tmp_path, *names))
    assert found.has_split_folders
    assert {split: files.names for split, files in found.splits.items()} == {
        "train": ("Training/a/1.png", "Training/b/1.png"),
        "validation": ("valid/a/1.png", "valid/b/1.png"),
        "test": ("test/a/1.png", "test/b/1.png"),
    }


def test_train_and_test_folders_leave_validation_to_the_split(tmp_path):
    names = [f"train/{pet}/{i}.png" for pet in "ab" for i in range(5)]
    found = read(write(tmp_path, *names, "test/a/1.png"))
    assert (found.counts("train"), found.counts("validation")) == ([4, 4], [1, 1])
    assert found.counts("test") == [1, 0]
    assert "no test files of: b" in found.notes


def test_train_may_be_a_class(tmp_path):
    assert read(write(tmp_path, "train/1.png", "bus/1.png")).class_names == ("bus", "train")


def test_folders_without_images_beside_splits_are_left_out(tmp_path):
    names = [f"{split}/{pet}/1.png" for split in ("train", "val") for pet in ("cat", "dog")]
    found = read(write(tmp_path, *names, "annotations/a.xml", "labels.csv"))
    assert (found.class_names, found.has_split_folders) == (("cat", "dog"), True)
    assert found.counts("validation") == [1, 1]
    assert found.notes == ("left out folders without images: annotations",)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["train/cat/1.png", "train/dog/1.png", "val/cat/1.png", "more/1.png", "docs/a.txt"],
            "'train' and 'val' look like splits, but 'more' beside them is neither",
        ),
        (["train/1.png", "test/1.png", "masks/1.png"], "Move 'masks' elsewhere, or rename"),
        (
            ["seg_train/a/1.png", "seg_test/a/1.png", "seg_pred/1.png"],
            "'seg_test' and 'seg_train' look like splits, not like classes. Expected the names",
        ),
        (["train_images/1.png", "test_images/1.png"], "'test_images' and 'train_images' look like"),
    ],
)
def test_splits_are_not_classes(tmp_path, names, message):
    with pytest.raises(KerasdistError, match=message):
        read(write(tmp_path, *names))


def test_classes_may_have_the_words_of_splits_in_their_names(tmp_path):
    names = ("test_tube/1.png", "train_station/1.png", "bus_station/1.png")
    assert len(read(write(tmp_path, *names)).class_names) == 3


def test_hidden_files_and_leftovers_are_not_seen(pets):
    write(pets, "__MACOSX/cats/1.jpg", ".cache/1.jpg", "cats/.DS_Store", "cats/Thumbs.db")
    found = read(pets)
    assert (found.class_names, found.notes) == (("cats", "dogs"), ())


def test_one_other_file_is_left_out_and_named(pets):
    write(pets, "README.txt")
    assert read(pets).notes == (
        "left out 1 file (not images in the folder of a class): README.txt",
    )


def test_other_files_are_left_out_and_named(pets):
    write(pets, "README.txt", "cats/list.csv", "models/net.h5")
    (pets / "empty").mkdir()
    assert read(pets).notes == (
        "left out 3 files (not images in the folder of a class): README.txt, cats/list.csv, "
        "models/net.h5",
        "left out folders without images: empty, models",
    )


def test_nested_folders_and_upper_case_suffixes_count(pets):
    write(pets, "cats/persian/1.PNG", "cats/persian/old/2.Jpeg")
    assert read(pets, validation_split=0).counts("train") == [12, 10]


def test_links_are_followed_once(pets, tmp_path):
    write(tmp_path / "more", "1.jpg", "2.jpg")
    os.symlink(tmp_path / "more", pets / "cats" / "linked")
    os.symlink(pets, pets / "dogs" / "round")
    os.symlink(pets / "cats" / "1.jpg", pets / "dogs" / "a_cat.jpg")
    found = read(pets, validation_split=0)
    assert found.counts("train") == [12, 11]


def test_unicode_names_are_the_same_in_both_spellings(tmp_path):
    composed, split = (unicodedata.normalize(form, "Äpfel") for form in ("NFC", "NFD"))
    names = [f"train/{composed}/1.png", "train/花/1.png", f"val/{split}/1.png", "val/花/1.png"]
    found = read(write(tmp_path, *names))
    assert found.class_names == (composed, "花")
    assert found.counts("validation") == [1, 1]


def test_a_single_file_of_a_class_is_for_training(pets):
    found = read(write(pets, "eels/1.jpg"))
    assert (found.counts("train")[2], found.counts("validation")[2]) == (1, 0)
    assert "one file only, so none for validation: eels" in found.notes


def test_without_validation(pets):
    assert "validation" not in read(pets, validation_split=0).splits


def test_known_classes_keep_their_numbers(pets):
    assert read(pets, class_names=("eels", "dogs", "cats")).splits["train"].labels[0] == 1


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        (["cats/1.jpg"], {}, "images of one class only: 'cats'. Expected at least two"),
        (["all/cats/1.jpg", "all/dogs/1.jpg"], {}, r"one class only: 'all'.*Did you mean '.*all'"),
        (["1.jpg", "2.jpg"], {}, "holds images, but no folder of them"),
        (
            ["train/a/1.jpg", "train/b/1.jpg", "val/c/1.jpg"],
            {},
            "The validation data of .* has the class 'c', which the training data does not",
        ),
        (
            ["train/a/1.jpg", "val/a/1.jpg", "valid/a/1.jpg"],
            {},
            "The folders 'val' and 'valid' both look like the validation data",
        ),
        (["a/1.jpg", "b/1.jpg"], {"validation_split": 1}, "Received `validation_split=1`"),
        (["a/1.jpg", "b/1.jpg"], {"validation_split": -0.1}, "Expected a part from 0 to below 1"),
        (["a/1.jpg", "kats/1.jpg"], {"class_names": ("a", "cats")}, "'kats'.*Did you mean 'cats'"),
        (["1.jpg"], {"class_names": ("a", "b")}, "as the folder of a single class. Expected"),
        (
            ["a/1.wav", "b/1.wav"],
            {"class_names": ("a", "b")},
            r"holds no images \(.png, .*\). Expected folders with the names of the model's .* a, b",
        ),
    ],
)
def test_what_cannot_be_trained_on_is_refused(tmp_path, names, options, message):
    with pytest.raises(KerasdistError, match=message):
        read(write(tmp_path / "data", *names), **options)


def test_what_is_not_a_folder_is_refused(tmp_path, pets):
    with pytest.raises(KerasdistError, match=r"does not exist.*`--data-dir`"):
        read(tmp_path / "nowhere")
    with pytest.raises(KerasdistError, match=r"is a file\. Expected a folder"):
        read(pets / "cats" / "1.jpg")


def test_a_folder_that_may_not_be_read_is_named(pets):
    (pets / "cats").chmod(0)
    try:
        if os.access(pets / "cats", os.R_OK):
            pytest.skip("this user may read everything")
        with pytest.raises(KerasdistError, match=r"cats' cannot be read: Permission denied"):
            read(pets)
    finally:
        (pets / "cats").chmod(0o755)


def test_many_names_are_cut():
    assert class_folders.shown([*"abcdefg"]) == "a, b, c, d, e, ... (7)"
