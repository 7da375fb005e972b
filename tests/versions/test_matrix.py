"""The lists of the scripts that test versions are those of `kerasdist/versions.py`."""

import importlib.machinery
import importlib.util
import json
import re
from pathlib import Path

import pytest

from kerasdist import versions

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def matrix():
    loader = importlib.machinery.SourceFileLoader("matrix", str(ROOT / ".ci" / "matrix"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("matrix", loader))
    loader.exec_module(module)
    return module


def minors(window):
    """Every minor version of a window, from the oldest to the newest."""
    (major, first), (_, last) = (versions.number(v)[:2] for v in (window.oldest, window.newest))
    return [f"{major}.{minor}" for minor in range(first, last + 1)]


def test_every_version_is_in_the_matrix(matrix):
    assert list(matrix.TENSORFLOW) == minors(versions.TENSORFLOW)
    assert list(matrix.KERAS) == minors(versions.KERAS)
    assert sorted(matrix.PYTHONS) == minors(versions.PYTHON)
    assert all(versions.TENSORFLOW.includes(v) for v in matrix.TENSORFLOW.values())
    assert all(versions.KERAS.includes(v) for v in matrix.KERAS.values())
    assert versions.KERAS.oldest in matrix.KERAS.values()


def test_every_combination_has_passed(matrix):
    lines = (ROOT / ".ci" / "matrix-results.jsonl").read_text().splitlines()
    rows = matrix.newest([json.loads(line) for line in lines])
    of_fast_set = [row for row in rows if row["tests"] == "fast set"]
    assert not any(row["exit"] for row in rows)
    found = {(row["python"], row["tensorflow"], row["keras"]) for row in of_fast_set}
    assert found == {
        (python, tensorflow, keras)
        for python in matrix.PYTHONS
        for minor, tensorflow in matrix.TENSORFLOW.items()
        if (python, minor) not in matrix.MISSING
        for keras in matrix.KERAS.values()
    }


def test_the_table_is_that_of_the_results(matrix):
    lines = (ROOT / ".ci" / "matrix-results.jsonl").read_text().splitlines()
    page = (ROOT / "docs" / "compatibility.md").read_text()
    for row in matrix.newest([json.loads(line) for line in lines]):
        assert matrix.shown(row) in page


def test_a_later_row_replaces_an_earlier_one(matrix):
    row = {"tests": "fast set", "tensorflow": "2.21.0", "keras": "3.15.1", "python": "3.11"}
    failed, passed, other = {**row, "exit": 1}, {**row, "exit": 0}, {**row, "python": "3.13"}
    assert matrix.newest([failed, other, passed]) == [passed, other]


@pytest.mark.parametrize("script", ["cuda", "colab"])
def test_other_scripts_ask_for_the_same_versions(matrix, script):
    asked = set(re.findall(r"\b2\.\d+\.0\b|\b2\.19\.1\b", (ROOT / ".ci" / script).read_text()))
    assert asked <= {*matrix.TENSORFLOW.values(), "2.1.0"}
    assert script == "colab" or asked == set(matrix.TENSORFLOW.values())


def test_the_fast_set_exists():
    lines = (ROOT / ".ci" / "fast-set").read_text().splitlines()
    for line in lines:
        if line and not line.startswith("#"):
            path, _, name = line.partition("::")
            assert (ROOT / path).exists(), line
            assert name.partition("[")[0] in ((ROOT / path).read_text() if name else ""), line
