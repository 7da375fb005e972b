"""Everything works without TFDS: recipes download the original files of their data."""

import dataclasses
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import kerasdist
from kerasdist import KerasdistError
from kerasdist.recipes import public_data
from kerasdist.recipes.importing import import_part
from tests.recipes.archive_server import make_tar, serve, sha256

ROOT = Path(__file__).resolve().parents[2]
INSTALL = r"pip install 'kerasdist\[tfds\]'"
NUM_IMAGES = 16  # in each file
BATCH = "--steps 1 --batch-size 8 --quiet"


@pytest.fixture(autouse=True)
def no_tfds(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "tfds"))
    monkeypatch.setenv("KERASDIST_DATA_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for function in (public_data._download, public_data._warn_synthetic):
        function.cache_clear()
    yield
    for function in (public_data._download, public_data._warn_synthetic):
        function.cache_clear()


@pytest.fixture
def data():
    """The CIFAR-10 recipe's data.py."""
    return import_part(ROOT / "recipes" / "cifar10", "data")


@pytest.fixture
def server(data, monkeypatch):
    """Serves a small archive of CIFAR-10's form, which the recipe takes for the real one."""
    random = np.random.default_rng(0)
    records = {}
    for name in data.ALL_FILES:
        images = random.integers(0, 256, (NUM_IMAGES, data.RECORD_BYTES), dtype=np.uint8)
        images[:, 0] %= 10
        records[f"cifar-10-batches-bin/{name}"] = images.tobytes()
    content = make_tar(records)
    with serve() as found:
        url = found.add(content).url
        small = dataclasses.replace(data.CIFAR10, url=url, sha256=sha256(content))
        monkeypatch.setattr(data, "CIFAR10", small)
        found.records = records
        yield found


def prepare(folder):
    """A folder that looks like one of TFDS."""
    folder = folder / "cifar10" / "3.0.2"
    folder.mkdir(parents=True)
    (folder / "dataset_info.json").write_text('{"name": "cifar10"}')
    return folder


def test_a_recipe_downloads_its_files_and_trains_on_them(server, command, tmp_path):
    done = command("fit", "cifar10", *BATCH.split())
    assert done.code == 0, done.err
    assert "NOT CIFAR-10" not in done.err
    assert f"Downloading CIFAR-10 (162 MB) to {tmp_path}/cache/cifar10/" in done.err
    result = json.loads((tmp_path / "runs/cifar10/0001/result.json").read_text())
    assert result["dataset"] == "files"
    assert len(server.requests) == 1
    # The second run needs no server.
    public_data._download.cache_clear()
    assert command("fit", "cifar10", *BATCH.split()).code == 0
    assert len(server.requests) == 1
    found = kerasdist.load_recipe("cifar10").build_data("validation")
    stored = np.frombuffer(server.records["cifar-10-batches-bin/test_batch.bin"], np.uint8)
    stored = stored.reshape(NUM_IMAGES, -1)
    np.testing.assert_array_equal(found["label"], stored[:, 0])
    np.testing.assert_array_equal(
        found["image"].transpose(0, 3, 1, 2).reshape(NUM_IMAGES, -1), stored[:, 1:]
    )


def test_files_can_be_asked_for_by_name(server, data, tmp_path):
    source, folder = data.CIFAR10.locate("files", None)
    assert source == "files"
    assert tmp_path / "cache" in folder.parents


def test_a_failed_download_is_the_reason_for_synthetic_data(server, data, capfd):
    server.status = 503
    for _ in range(2):
        assert data.CIFAR10.locate("auto", None) == ("synthetic", None)
    warning = capfd.readouterr().err
    assert warning.count("THIS IS NOT CIFAR-10") == 1
    assert "cannot be reached (HTTPError: HTTP Error 503" in warning
    assert len(server.requests) == 1
    with pytest.raises(KerasdistError, match=r"'files' without `data_dir`.*HTTP Error 503"):
        data.CIFAR10.locate("files", None)


def test_without_a_checksum_only_tfds_can_download(server, data, capfd):
    unknown = dataclasses.replace(data.CIFAR10, sha256=None)
    assert unknown.locate("auto", None) == ("synthetic", None)
    warning = " ".join(capfd.readouterr().err.split())
    assert re.search(rf"has no `sha256`, so only TFDS can download it \(`{INSTALL}`\)", warning)
    with pytest.raises(KerasdistError, match="has no `sha256`"):
        unknown.locate("files", None)
    assert server.requests == []


def test_asking_for_tfds_says_how_to_install_it(data, tmp_path):
    folder = prepare(tmp_path / "tfds")
    with pytest.raises(KerasdistError, match=rf"TFDS is not installed.*{INSTALL}"):
        data.CIFAR10.locate("tfds", None)
    recipe = kerasdist.load_recipe("cifar10", data_dir=str(folder))
    with pytest.raises(KerasdistError, match=rf"TFDS is not installed.*{INSTALL}"):
        recipe.build_data("train")


def test_a_prepared_folder_that_cannot_be_read_is_passed_over(server, data, tmp_path):
    prepare(tmp_path / "tfds")
    assert data.CIFAR10.locate("auto", None)[0] == "files"


def test_a_tfds_that_misses_a_package_is_as_good_as_none(server, data, tmp_path, monkeypatch):
    package = tmp_path / "packages" / "tensorflow_datasets"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(package.parent)
    monkeypatch.delitem(sys.modules, "tensorflow_datasets")
    assert public_data.has_tfds()
    assert data.CIFAR10.locate("auto", None)[0] == "files"
    recipe = kerasdist.load_recipe("cifar10", data_dir=str(prepare(tmp_path / "tfds")))
    missing = rf"TFDS cannot be imported \(ModuleNotFoundError: .*a_package.*\).*{INSTALL}"
    with pytest.raises(KerasdistError, match=missing):
        recipe.build_data("train")


@pytest.mark.parametrize("name", ["cifar10", "audio"])
def test_the_recipes_have_checksums(name):
    part = import_part(ROOT / "recipes" / name, "data")
    found = part.CIFAR10 if name == "cifar10" else part.FSDD
    assert re.fullmatch("[0-9a-f]{64}", found.sha256)


def test_the_recordings_are_found_in_the_archive_of_a_version(tmp_path):
    part = import_part(ROOT / "recipes" / "audio", "data")
    folder = tmp_path / "free-spoken-digit-dataset-1.0.9" / "recordings"
    folder.mkdir(parents=True)
    assert part.FSDD.find_files(tmp_path) is None
    (folder / "7_jackson_32.wav").touch()
    assert part.FSDD.find_files(tmp_path) == folder


def test_commands_run_where_tfds_cannot_be_imported(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\nsys.modules['tensorflow_datasets'] = None\n"
    )
    script = (
        "import sys, kerasdist\n"
        "from kerasdist.cli.main import main\n"
        f"options = '--source synthetic --num-train 16 --num-validation 8 {BATCH}'.split()\n"
        "assert main(['fit', 'cifar10', *options]) == 0\n"
        "assert main(['evaluate', 'runs/cifar10/0001', '--quiet']) == 0\n"
        "assert main(['doctor']) == 0\n"
        "try:\n"
        "    import tensorflow_datasets\n"
        "except ImportError:\n"
        "    print('TFDS was not there')\n"
    )
    path = os.pathsep.join([str(tmp_path), str(ROOT)])
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "TFDS was not there" in done.stdout
    assert re.search(rf"TFDS.*not installed.*{INSTALL}", " ".join(done.stdout.split()))
