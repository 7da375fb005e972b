"""What `.ci/find-python` and `.ci/package` refuse. `.ci/run` runs the rest of `.ci/package`."""

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def run(script, *words, **environment):
    return subprocess.run(
        ["bash", ROOT / ".ci" / script, *words],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
    )


def executable(file, script):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return str(file)


@pytest.fixture
def places(tmp_path):
    """A PATH and a folder of pyenv without any Python 3.99."""
    (tmp_path / "bin").mkdir()
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}"
    return {"PATH": path, "PYENV_ROOT": str(tmp_path / "pyenv")}


def test_a_python_on_the_path_is_found(tmp_path, places):
    file = executable(tmp_path / "bin" / "python3.99", "echo Python 3.99.1")
    assert run("find-python", "3.99", **places).stdout == f"{file}\n"


@pytest.mark.parametrize("shim", ["echo no such version >&2; exit 127", "echo Python 3.98.0", None])
def test_a_python_of_pyenv_is_found_if_the_one_on_the_path_does_not_start(tmp_path, places, shim):
    if shim:
        executable(tmp_path / "bin" / "python3.99", shim)
    executable(tmp_path / "pyenv" / "versions" / "3.9.9" / "bin" / "python", "echo Python 3.9.9")
    folder = tmp_path / "pyenv" / "versions" / "3.99.2"
    file = executable(folder / "bin" / "python", "echo Python 3.99.2")
    done = run("find-python", "3.99", **places)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{file}\n", "")


def test_a_python_that_is_missing_is_named(places):
    done = run("find-python", "3.99", **places)
    assert (done.returncode, done.stdout) == (1, "")
    assert "There is no Python 3.99 on this machine" in done.stderr


@pytest.mark.parametrize("words", [(), ("",), ("3",), ("3.13.1",), ("python3.13",)])
def test_what_is_not_a_version_of_python_is_refused(words):
    done = run("find-python", *words)
    assert done.returncode == 2
    assert "Give a version of Python such as 3.13" in done.stderr


def test_dependencies_must_be_a_folder_of_packages(tmp_path):
    done = run("package", KERASDIST_DEPENDENCIES=str(tmp_path))
    assert done.returncode == 2
    assert f"'{tmp_path}', which has no TensorFlow" in done.stderr
