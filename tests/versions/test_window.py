"""Versions that were not tested are refused before anything is imported, with what to install."""

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from kerasdist import versions
from kerasdist.cli import main
from kerasdist.errors import KerasdistError
from kerasdist.versions import KERAS, PYTHON, TENSORFLOW

ROOT = Path(__file__).resolve().parents[2]


def refuse(python="3.11.7", **found):
    installed = {"TensorFlow": "2.21.0", "Keras": "3.15.1", **found}
    versions.refuse_others(python, lambda window: installed[window.title])


@pytest.mark.parametrize("keras", ["3.13.2", "3.14.0", "3.14.1", "3.15.0", "3.15.99"])
@pytest.mark.parametrize("tensorflow", ["2.19.0", "2.19.1", "2.20.0", "2.21.0", "2.21.1"])
@pytest.mark.parametrize("python", ["3.11.0", "3.12.1", "3.13.9"])
def test_the_window_is_accepted(python, tensorflow, keras):
    refuse(python=python, TensorFlow=tensorflow, Keras=keras)


@pytest.mark.parametrize(
    ("title", "version", "remedy"),
    [
        ("Keras", "3.13.1", 'pip install "keras>=3.13.2,<3.16"'),
        ("Keras", "3.16.0", 'pip install "keras>=3.13.2,<3.16"'),
        ("Keras", "3.16.0.dev20261101", 'pip install "keras>=3.13.2,<3.16"'),
        ("Keras", "4.0", 'pip install "keras>=3.13.2,<3.16"'),
        ("Keras", "2.15.0", 'pip install "keras>=3.13.2,<3.16"'),
        ("TensorFlow", "2.18.1", 'pip install "tensorflow>=2.19,<2.22"'),
        ("TensorFlow", "2.22.0rc0", 'pip install "tensorflow>=2.19,<2.22"'),
    ],
)
def test_other_versions_are_refused_with_what_to_install(title, version, remedy):
    with pytest.raises(KerasdistError) as caught:
        refuse(**{title: version})
    assert f"Received {title} {version}." in str(caught.value)
    assert remedy in str(caught.value)


@pytest.mark.parametrize("version", ["3.10.13", "3.14.0"])
def test_another_python_is_refused(version):
    with pytest.raises(KerasdistError, match=f"Received Python {version}. .* 3.11 to 3.13"):
        refuse(python=version)


def test_windows_is_refused_with_what_is_missing():
    with pytest.raises(KerasdistError, match=r"`fcntl`.*WSL 2"):
        versions.check_system("win32")


def test_on_windows_a_command_is_refused_before_it_needs_fcntl(monkeypatch, capsys):
    monkeypatch.setattr(sys, "platform", "win32")
    assert main.main(["fit", "cifar10"]) == 2
    assert capsys.readouterr().err.startswith("kerasdist: kerasdist does not run on Windows")


def test_a_package_that_is_not_found_is_left_to_its_import():
    refuse(TensorFlow=None, Keras=None)


def test_the_installed_versions_are_found_without_an_import():
    import keras
    import tensorflow as tf

    assert versions.number(versions.installed(KERAS)) == versions.number(keras.__version__)
    assert versions.number(versions.installed(TENSORFLOW)) == versions.number(tf.__version__)


def test_pyproject_asks_for_the_same_window():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    def wanted(window, name=""):
        major, minor = versions.number(window.newest)
        return f"{name}>={window.oldest},<{major}.{minor + 1}"

    assert wanted(TENSORFLOW, "tensorflow") in project["dependencies"]
    assert wanted(KERAS, "keras") in project["dependencies"]
    assert project["requires-python"] == wanted(PYTHON)
    extras = project["optional-dependencies"]
    assert extras["cuda"] == [wanted(TENSORFLOW, "tensorflow[and-cuda]")]
    pythons = [f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)]
    assert set(pythons) <= set(project["classifiers"])


@pytest.fixture
def newer_keras(tmp_path):
    """A folder that makes Python believe that a newer Keras is installed."""
    folder = tmp_path / "keras-3.99.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: keras\nVersion: 3.99.0\n")
    # With this variable, importing kerasdist makes logical CPUs at once.
    others = {k: v for k, v in os.environ.items() if k != "KERASDIST_LOGICAL_CPUS"}
    return {**others, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}


def start(code, environment):
    return subprocess.run(
        [sys.executable, *code], env=environment, capture_output=True, text=True, cwd=ROOT
    )


def test_the_first_use_of_a_name_is_refused_before_tensorflow_loads(newer_keras):
    code = (
        "import sys, kerasdist\n"
        "try: kerasdist.fit\n"
        "except kerasdist.KerasdistError as error: print(error)\n"
        "print('tensorflow' in sys.modules)"
    )
    told = start(["-c", code], newer_keras).stdout.splitlines()
    assert "Received Keras 3.99.0." in told[0]
    assert told[-1] == "False"


def test_logical_cpus_are_not_made_before_the_check(newer_keras):
    done = start(["-c", "import kerasdist"], {**newer_keras, "KERASDIST_LOGICAL_CPUS": "2"})
    assert "KerasdistError: Received Keras 3.99.0." in done.stderr


def test_a_command_is_refused_in_one_line(newer_keras):
    done = start(["-m", "kerasdist", "devices"], newer_keras)
    assert done.returncode == 2
    assert done.stderr.startswith("kerasdist: Received Keras 3.99.0.")
    assert done.stderr.count("\n") == 1


def test_the_check_can_be_left_out(newer_keras):
    environment = {**newer_keras, versions.ANY: "1"}
    assert start(["-c", "import kerasdist; kerasdist.fit"], environment).returncode == 0
