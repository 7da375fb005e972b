"""Checkpoints that are damaged, or made by somebody: found out, and the one before is used."""

import errno
import json
import os
import shutil

import numpy as np
import pytest

from kerasdist.runs.checkpoints import Files, Store, manifests
from tests.faulty_files import assert_same, small_arrays

META = {"epoch": 3, "best": 0.25, "names": ["a", "b"], "nested": {"none": None}}


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "checkpoints"


def flip_bit(path, position):
    with open(path, "r+b") as file:
        file.seek(position // 8)
        byte = file.read(1)[0]
        file.seek(position // 8)
        file.write(bytes([byte ^ 1 << position % 8]))


@pytest.fixture
def two(folder):
    """Step 1 and, with about 100 KB, step 2, whose folder is returned."""
    store = Store(folder)
    store.save(1, small_arrays(1), {"step": 1})
    return store.save(2, small_arrays(2, num_floats=25_000), {**META, "step": 2})


def assert_falls_back(path, reason=""):
    store = Store(path.parent)
    checkpoint = store.newest()
    assert checkpoint.step == 1
    assert_same(checkpoint.arrays, small_arrays(1))
    [(skipped, why)] = store.skipped
    assert skipped == path
    assert reason in why
    assert why


def assert_intact(path):
    store = Store(path.parent)
    assert store.newest().step == 2
    assert store.skipped == []


@pytest.mark.parametrize("file", ["arrays.bin", "manifest.json"])
def test_truncation_is_detected(two, file):
    path = two / file
    whole = path.read_bytes()
    for size in [*range(0, len(whole), 4096), len(whole) - 1]:
        path.write_bytes(whole[:size])
        assert_falls_back(two)
    path.write_bytes(whole + b"\0")
    assert_falls_back(two)
    path.write_bytes(whole)
    assert_intact(two)
    path.unlink()
    assert_falls_back(two, f"{file} is missing")


def test_a_thousand_bit_flips_are_detected(two):
    sizes = {path: path.stat().st_size * 8 for path in sorted(two.iterdir())}
    assert sum(sizes.values()) > 800_000
    random = np.random.default_rng(0)
    for position in random.integers(0, sum(sizes.values()), size=1000):
        for path, size in sizes.items():  # noqa: B007 - used after the loop
            if position < size:
                break
            position -= size
        flip_bit(path, position)
        assert_falls_back(two)
        flip_bit(path, position)
    assert_intact(two)


def test_a_flipped_bit_in_any_byte_of_the_manifest_is_detected(folder):
    store = Store(folder)
    store.save(1, small_arrays(1), {"step": 1})
    path = store.save(2, {"a": np.ones(3)}, {"text": "é\n", "number": 1.5e300, "none": None})
    random = np.random.default_rng(0)
    for byte in range((path / "manifest.json").stat().st_size):
        position = byte * 8 + random.integers(8)
        flip_bit(path / "manifest.json", position)
        assert_falls_back(path, "manifest.json")
        flip_bit(path / "manifest.json", position)
    assert_intact(path)


def test_padding_is_checked_too(folder):
    store = Store(folder)
    store.save(1, small_arrays(1), {})
    path = store.save(2, {"a": np.ones(1, "int8"), "b": np.ones(1, "int8")}, {})
    flip_bit(path / "arrays.bin", 8 * 30)
    assert_falls_back(path, "arrays.bin does not have its sha256")


def test_everything_broken_is_none(folder, two):
    for path in folder.iterdir():
        (path / "arrays.bin").write_bytes(b"")
    store = Store(folder)
    assert store.newest() is None
    assert [path.name for path, _ in store.skipped] == ["step-00000002", "step-00000001"]
    (two / "arrays.bin").unlink()
    shutil.rmtree(folder / "step-00000001")
    assert store.newest() is None
    assert len(store.skipped) == 1


def test_files_of_another_step_are_not_taken(folder, two):
    shutil.copytree(two, folder / "step-00000009")
    store = Store(folder)
    assert store.newest().step == 2
    assert store.skipped == [(folder / "step-00000009", "manifest.json is that of step 2")]


def test_a_disk_that_cannot_read_falls_back(folder, two):
    class Unreadable(Files):
        def read(self, file, buffers):
            if "step-00000002/arrays.bin" in os.readlink(f"/proc/self/fd/{file}"):
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return os.readv(file, buffers)

    store = Store(folder, files=Unreadable())
    assert store.newest().step == 1
    assert store.skipped == [(two, "it cannot be read: Input/output error")]


def test_a_reader_follows_a_training_that_removes_what_it_listed(folder, two):
    class Meanwhile(Files):
        def listdir(self, path):
            found = os.listdir(path)
            if "step-00000004" not in found:
                for step in (3, 4):
                    Store(folder).save(step, small_arrays(step), {})
            return found

    store = Store(folder, files=Meanwhile())
    assert store.newest().step == 4
    assert store.skipped == []


def forge(path, change):
    """Rewrites the manifest with a right checksum, after `change` of its content."""
    content = json.loads((path / "manifest.json").read_text())
    del content["checksum"]
    change(content)
    content["checksum"] = manifests._checksum(content)
    (path / "manifest.json").write_bytes(manifests._dump(content))


def first(**fields):
    return lambda content: content["arrays"][0].update(fields)


def other(**fields):
    return lambda content: content.update(fields)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (first(shape=[-1, 4]), "-1 is not a count"),
        (first(shape=[2**40, 2**40]), "has the shape"),
        (first(shape=[2**62, 4, 0]), "has the shape"),
        (first(shape=[2**50]), "cannot have"),
        (first(shape=[2**50], nbytes=2**52), "should have|cannot begin"),
        (first(shape=[1] * 33), "33 dimensions"),
        (first(shape=[True]), "True is not a count"),
        (first(shape=[1.0]), "1.0 is not a count"),
        (first(shape="12"), "'1' is not a count"),
        (first(shape=None), "makes no sense"),
        (first(nbytes=10**30), "cannot have"),
        (first(offset=64), "cannot begin"),
        (first(offset=-64), "-64 is not a count"),
        (first(dtype="object"), "unknown dtype 'object'"),
        (first(dtype="O"), "unknown dtype"),
        (first(dtype="V8"), "unknown dtype"),
        (first(dtype="finfo"), "unknown dtype"),
        (first(dtype=["float32"]), "is not text"),
        (first(name=""), "is not text"),
        (first(name=7), "is not text"),
        (first(name="dense/bias"), "two arrays have the same name"),
        (first(code="import os"), "makes no sense"),
        (lambda content: content["arrays"].pop(), "should have"),
        (lambda content: content["arrays"].insert(0, 7), "makes no sense"),
        (lambda content: content["files"].update({"../x": {}}), "it names the files"),
        (lambda content: content["files"]["arrays.bin"].update(size=0), "should have"),
        (lambda content: content["files"]["arrays.bin"].update(sha256=3), "sha256 is not text"),
        (lambda content: content["files"]["arrays.bin"].update(sha256=""), "its sha256"),
        (other(format=2), "has format 2; this version reads 1"),
        (other(step=-2), "-2 is not a count"),
        (other(step="2"), "'2' is not a count"),
        (other(step=3), "is that of step 3"),
        (other(meta=[]), "the wrong type"),
        (other(arrays={}), "the wrong type"),
        (other(files=None), "makes no sense"),
        (other(pickle="x"), "it has the fields"),
    ],
)
def test_forged_manifests_are_refused(two, change, reason):
    forge(two, change)
    store = Store(two.parent)
    assert store.newest().step == 1
    [(_, why)] = store.skipped
    assert any(part in why for part in reason.split("|")), why


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]\n",
        b"7\n",
        b"[" * 100_000,
        b'{"a": NaN}\n',
        b'{"a": 1e999}\n',
        b'{"a": ' + b"9" * 5000 + b"}\n",
        b"\xff\xfe\x00",
        b"\x80\x04\x95",
    ],
)
def test_other_text_as_manifest_is_refused(two, raw):
    (two / "manifest.json").write_bytes(raw)
    assert_falls_back(two, "manifest.json")


def test_a_huge_manifest_is_not_read(two):
    os.truncate(two / "manifest.json", manifests.MOST_MANIFEST_BYTES + 1)
    assert_falls_back(two, "more than")


@pytest.mark.parametrize("file", ["arrays.bin", "manifest.json"])
@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_files_of_a_checkpoint_are_regular(two, tmp_path, file, kind):
    path = two / file
    path.rename(tmp_path / "moved")
    if kind == "link":
        path.symlink_to(tmp_path / "moved")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert_falls_back(two, f"{file} is missing, or is not a regular file")
