"""Files that are replaced completely or not at all."""

import doctest
import json
import os

import pytest

from kerasdist.runs import atomic


def test_content_is_replaced_and_no_draft_stays(tmp_path):
    path = tmp_path / "x.json"
    atomic.write_text(path, "old")
    atomic.write_json(path, {"loss": float("inf"), "name": "\udcff"})
    assert json.loads(path.read_text()) == {"loss": None, "name": "\udcff"}
    atomic.write_text(path, "a file name that is not text: \udcff")
    assert path.read_text() == "a file name that is not text: ?"
    assert os.listdir(tmp_path) == ["x.json"]


@pytest.mark.parametrize("error", [OSError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_content_and_no_draft(tmp_path, error):
    path = tmp_path / "x"
    path.write_text("old")

    def fail():
        with atomic.replacing(path) as draft:
            draft.write_text("half of the n")
            raise error

    with pytest.raises(error):
        fail()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["x"]


def test_a_draft_may_have_another_name(tmp_path):
    with atomic.replacing(tmp_path / "x", draft=tmp_path / ".rewriting") as draft:
        draft.write_text("new")
        assert os.listdir(tmp_path) == [".rewriting"]
    assert (tmp_path / "x").read_text() == "new"


def test_synced_before_it_is_renamed(tmp_path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda file: (calls.append("sync"), fsync(file))[1])
    monkeypatch.setattr(os, "replace", lambda *names: (calls.append("rename"), replace(*names))[1])
    atomic.write_bytes(tmp_path / "x", b"plain")
    assert calls == ["rename"]
    atomic.write_bytes(tmp_path / "x", b"synced", sync=True)
    assert calls == ["rename", "sync", "rename"]
    assert (tmp_path / "x").read_bytes() == b"synced"


def test_the_examples_run():
    result = doctest.testmod(atomic)
    assert result.attempted
    assert not result.failed
