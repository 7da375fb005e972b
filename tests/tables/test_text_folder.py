import numpy as np
import pytest

from kerasdist import KerasdistError, TextFolder
from kerasdist.tables.files.text_file import problem, read_text


@pytest.fixture
def folder(tmp_path):
    for i in range(20):
        path = tmp_path / "texts" / ("bad", "good")[i % 2]
        path.mkdir(parents=True, exist_ok=True)
        (path / f"{i}.txt").write_text(f"It is {('awful', 'great')[i % 2]}, text {i}!")
    return tmp_path / "texts"


def test_words_become_numbers(folder):
    found = TextFolder(folder)
    assert found.class_names == ("bad", "good")
    assert found.schema.vocabulary == ("is", "it", "text", "awful", "great")
    x, y = found.train
    assert x["words"].shape == (16, 5)
    assert y.tolist() == [0] * 8 + [1] * 8
    assert x["words"][0].tolist() == [3, 2, 5, 4, 1]
    assert len(found.validation[1]) == 4
    assert len(found.all[1]) == 20
    assert found.test is None


def test_examples_are_described_by_their_files(folder):
    (folder / "bad" / "8.txt").write_text("A very\nlong story. " * 40)
    found = TextFolder(folder, validation_split=0).describe_examples("train", [12, 9])
    assert found[0] == {"file": "good/13.txt", "text": "It is great, text 13!"}
    assert found[1]["file"] == "bad/8.txt"
    assert found[1]["text"] == ("A very long story. " * 40)[:199] + "…"


def test_folders_of_splits_are_used(folder, tmp_path):
    (tmp_path / "parts").mkdir()
    folder.rename(tmp_path / "parts" / "train")
    for name in ("bad", "good"):
        path = tmp_path / "parts" / "test" / name
        path.mkdir(parents=True)
        (path / "1.txt").write_text("Unseen great words")
    found = TextFolder(tmp_path / "parts", validation_split=0)
    assert len(found.train[1]) == 20
    assert found.validation is None
    assert found.test[0]["words"][0].tolist() == [1, 6, 1, 0, 0]
    assert "unseen" not in found.schema.vocabulary


def test_other_files_are_read_with_what_was_learnt(folder, tmp_path):
    found = TextFolder(folder)
    path = tmp_path / "new.txt"
    path.write_text("AWFUL.")
    expected = [[5, 0, 0, 0, 0]]
    assert found.read([path])["words"].tolist() == expected
    assert TextFolder.read_texts([path], found.schema.to_json())["words"].tolist() == expected
    again = TextFolder(folder, schema=found.schema.to_json())
    np.testing.assert_array_equal(again.train[0]["words"], found.train[0]["words"])


def test_training_files_stay_for_training_when_files_come(folder):
    found = TextFolder(folder)
    assert found.schema.split.limits
    for i in range(40):
        (folder / ("bad", "good")[i % 2] / f"new{i}.txt").write_text(f"It is text {i}!")
    files = {name: set(found._folders.splits[name].names) for name in ("train", "validation")}
    later = TextFolder(folder, schema=found.schema.to_json())
    assert later.schema == found.schema
    for name, kept in files.items():
        assert kept <= set(later._folders.splits[name].names)
    # A run from before the split was kept draws anew.
    old = TextFolder(folder, schema={**found.schema.to_json(), "split": None})
    assert old._folders.splits == TextFolder(folder)._folders.splits


def test_bad_files_are_named_or_left_out(folder):
    (folder / "bad" / "x.txt").write_bytes(b"\0\1\2")
    (folder / "good" / "y.txt").write_text("  \n")
    with pytest.raises(KerasdistError, match=r"good/y.txt is empty; bad/x.txt is not text"):
        TextFolder(folder)
    assert set(TextFolder(folder, skip_bad=True).skipped) == {"bad/x.txt", "good/y.txt"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "latin-1", "utf-16"])
def test_encodings(tmp_path, encoding):
    path = tmp_path / "a.txt"
    path.write_bytes("Züri\r\nBärn".encode(encoding))
    assert read_text(path) in ("Züri\nBärn", "Züri\r\nBärn")


def test_a_damaged_byte_costs_its_own_character(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes("Züri, Bärn und n".encode() + b"\xe9te")
    assert read_text(path) == "Züri, Bärn und n\ufffdte"


def test_problems(tmp_path):
    assert problem(tmp_path / "none.txt").startswith("cannot be opened")
    (tmp_path / "empty.txt").touch()
    with pytest.raises(KerasdistError, match=r"empty.txt' is empty"):
        read_text(tmp_path / "empty.txt")


def test_what_was_found_is_said(folder):
    lines = TextFolder(folder).describe()
    assert lines["found"].startswith("text files of 2 classes: bad 10, good 10")
    assert lines["sizes"] == "the first 5 words of a text are read; 5 words that come twice or more"
