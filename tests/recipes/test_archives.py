"""Tar and zip files are unpacked, and nothing leaves the folder."""

import pytest

from kerasdist.recipes.archives import BadArchiveError, unpack
from tests.recipes.archive_server import FILES, make_tar, make_zip


def unpacked(tmp_path, content):
    path, folder = tmp_path / "archive", tmp_path / "deep" / "files"
    folder.mkdir(parents=True)
    path.write_bytes(content)
    unpack(path, folder)
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


@pytest.mark.parametrize("mode", ["w", "w:gz", "w:bz2", "w:xz"])
def test_a_tar_file_is_unpacked(tmp_path, mode):
    assert unpacked(tmp_path, make_tar({"./": None, "clips": None, **FILES}, mode)) == FILES


def test_a_zip_file_is_unpacked(tmp_path):
    assert unpacked(tmp_path, make_zip({"clips/": b"", **FILES})) == FILES


@pytest.mark.parametrize("make", [make_tar, make_zip])
@pytest.mark.parametrize("name", ["../x", "a/../../x", "/x", "a\\..\\x", ".."])
def test_an_unsafe_name_is_refused(tmp_path, make, name):
    name = str(tmp_path / "x") if name == "/x" else name
    with pytest.raises(BadArchiveError, match="is not safe"):
        unpacked(tmp_path, make({"first": b"1", name: b"evil"}))
    assert not list(tmp_path.rglob("x"))


def test_links_are_refused(tmp_path):
    with pytest.raises(BadArchiveError, match=r"'out' is a link or a device"):
        unpacked(tmp_path, make_tar({"out": "..", "out/x": b"evil"}))
    assert not list(tmp_path.rglob("x"))


def test_a_damaged_archive_says_so(tmp_path):
    whole = make_tar({"big": bytes(range(256)) * 4000})
    with pytest.raises(BadArchiveError, match=r"EOFError|ReadError"):
        unpacked(tmp_path, whole[: len(whole) // 2])


def test_another_file_is_not_an_archive(tmp_path):
    with pytest.raises(BadArchiveError, match="neither a tar nor a zip"):
        unpacked(tmp_path, b"<html>Please log in</html>")
