"""Files from untrusted sources: only plain arrays are read, everything else is refused."""

import io
import os
import pickle
import random
import sys
import tracemalloc
import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
from keras import layers

from kerasdist import KerasdistError
from kerasdist.model_files import stored_arrays, weights
from kerasdist.model_files.stored_arrays import read_arrays
from kerasdist.model_files.weights import load_into
from kerasdist.runs.trained_model import WEIGHTS_MEMBER
from tests.model_files.small_models import (
    BIAS,
    KERNEL,
    assert_same,
    disturbed,
    line,
)


@pytest.fixture
def marker(tmp_path):
    """A file that every payload makes when it runs. At the end it must not be there."""
    path = tmp_path / "marker"
    yield path
    assert not path.exists(), "code of the file was run"


@pytest.fixture
def good(tmp_path):
    """Honest weights for `line()`, as bytes, for files that hide something else."""
    line().save_weights(tmp_path / "good.weights.h5")
    return (tmp_path / "good.weights.h5").read_bytes()


def archive(path, members, method=zipfile.ZIP_STORED):
    with zipfile.ZipFile(path, "w", method) as file:
        for name, content in members:
            file.writestr(name, content)
    return path


def assert_refused(path, match):
    """By both ways in, in three parts that name the file; the model stays as it was."""
    model = disturbed(line(), 1)
    before = model.get_weights()
    for strict in (True, False):
        with pytest.raises(KerasdistError, match=match) as error:
            load_into(model, path, strict=strict)
        message = str(error.value)
        assert message.count(". ") >= 2
        assert repr(str(path)) in message
        assert "Expected " in message
    with pytest.raises(KerasdistError, match=match):
        read_arrays(path)
    assert_same(model.get_weights(), before)


def lambda_model(marker):
    # The path is a literal of the code, which is all that a file carries.
    touch = eval(f"lambda x: (open({str(marker)!r}, 'w').close(), x)[1]")
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2), layers.Lambda(touch)])
    marker.unlink()
    return model


def test_a_lambda_layer_does_not_run_and_is_refused(tmp_path, marker):
    source, path = lambda_model(marker), tmp_path / "lambda.keras"
    source.save(path)
    keras.models.load_model(path, safe_mode=False)
    assert marker.exists()  # The sample is a real one.
    marker.unlink()
    assert_refused(path, "names the code of a function; no code was run")


def test_a_lambda_layer_in_a_file_of_keras_2_is_refused(tmp_path, marker):
    lambda_model(marker).save(tmp_path / "lambda.h5")
    with h5py.File(tmp_path / "lambda.h5") as file:
        assert "__lambda__" in file.attrs["model_config"]
    assert_refused(tmp_path / "lambda.h5", "layout of Keras 2")
    archive(tmp_path / "x.keras", [(WEIGHTS_MEMBER, (tmp_path / "lambda.h5").read_bytes())])
    assert_refused(tmp_path / "x.keras", "layout of Keras 2")


@pytest.mark.parametrize(
    "config",
    [
        '{"module": "payload_of_a_test", "class_name": "Thing", "config": {}}',
        '{"module": "os", "class_name": "system", "config": {"command": "touch MARKER"}}',
        '{"module": "keras.layers", "class_name": "TFSMLayer", "config": {"filepath": "MARKER"}}',
        "no json at all",
    ],
)
def test_a_configuration_that_names_code_is_refused_unrun(
    config, tmp_path, marker, good, monkeypatch
):
    (tmp_path / "payload_of_a_test.py").write_text(f"open({str(marker)!r}, 'w').close()")
    monkeypatch.syspath_prepend(tmp_path)
    path = archive(
        tmp_path / "x.keras",
        [("config.json", config.replace("MARKER", str(marker))), (WEIGHTS_MEMBER, good)],
    )
    assert_refused(path, "names the (class|layer)|it is broken .JSONDecodeError")
    assert "payload_of_a_test" not in sys.modules


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (os.mkdir, (str(self.marker),))


def test_pickles_are_not_read(tmp_path, marker):
    objects = np.array([Payload(marker)], dtype=object)
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, objects, allow_pickle=True)
    np.savez(npz, **{KERNEL: objects, WEIGHTS_MEMBER: objects})
    for name, content, match in [
        ("pickle.keras", pickle.dumps(Payload(marker)), "not a zip file"),
        ("npy.keras", npy.getvalue(), "not a zip file"),
        ("npz.keras", npz.getvalue(), "has no members 'model.weights.h5'"),
        ("pickle.weights.h5", pickle.dumps(Payload(marker)), "cannot be read: it is broken"),
        ("npy.h5", npy.getvalue(), "cannot be read: it is broken"),
    ]:
        (tmp_path / name).write_bytes(content)
        assert_refused(tmp_path / name, match)
    path = archive(tmp_path / "weights.keras", [("model.weights.npz", npz.getvalue())])
    assert_refused(path, "has no members 'model.weights.h5'")
    path = archive(tmp_path / "member.keras", [(WEIGHTS_MEMBER, npy.getvalue())])
    assert_refused(path, "cannot be read")
    with open(tmp_path / "npy.keras", "rb") as file:
        np.load(file, allow_pickle=True)
    assert marker.exists()  # The sample is a real one.
    marker.rmdir()


def test_members_with_paths_go_nowhere(tmp_path, good):
    folder = tmp_path / "a/b"
    folder.mkdir(parents=True)
    evil = [("../../evil", "x"), (str(tmp_path / "evil"), "x"), ("assets/../../../evil", "x")]
    before = sorted(tmp_path.rglob("*"))
    path = archive(folder / "x.keras", [*evil, (WEIGHTS_MEMBER, good)])
    assert load_into(line(), path, strict=True).complete
    assert sorted(tmp_path.rglob("*")) == sorted([*before, path])
    path = archive(folder / "y.keras", [(f"../{WEIGHTS_MEMBER}", good)])
    assert_refused(path, "has no members")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_weights_twice_in_an_archive_are_refused(tmp_path, good):
    path = archive(tmp_path / "x.keras", [(WEIGHTS_MEMBER, good), (WEIGHTS_MEMBER, good)])
    assert_refused(path, "has 2 members")


def test_an_archive_that_unpacks_to_much_more_than_the_model_is_refused(tmp_path):
    zeros = bytes(stored_arrays.SLACK_BYTES + (1 << 20))
    path = archive(tmp_path / "x.keras", [(WEIGHTS_MEMBER, zeros)], zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 18
    assert_refused(path, "have 68,157,440 bytes. Expected at most 67,")


def test_an_archive_that_lies_about_its_size_is_refused(tmp_path, monkeypatch):
    for module in (stored_arrays, weights):
        monkeypatch.setattr(module, "SLACK_BYTES", 1000)
    size = 1 << 25
    path = archive(tmp_path / "x.keras", [(WEIGHTS_MEMBER, bytes(size))], zipfile.ZIP_DEFLATED)
    content = path.read_bytes()
    assert content.count(size.to_bytes(4, "little")) == 2
    path.write_bytes(content.replace(size.to_bytes(4, "little"), (900).to_bytes(4, "little")))
    assert_refused(path, "cannot be read")
    tracemalloc.start()
    with pytest.raises(KerasdistError):
        read_arrays(path)
    assert tracemalloc.get_traced_memory()[1] < size / 10
    tracemalloc.stop()


@pytest.mark.parametrize("method", [zipfile.ZIP_LZMA, zipfile.ZIP_BZIP2])
def test_other_methods_of_compression_are_refused(method, tmp_path, good):
    path = archive(tmp_path / "x.keras", [(WEIGHTS_MEMBER, good)], method)
    assert_refused(path, "compressed in an unusual way")


def test_a_file_may_be_much_larger_than_the_model(tmp_path):
    """Only what matches is read of an HDF5 file; an archive is read into memory."""
    source = keras.Sequential([keras.Input((3,)), layers.Dense(2), layers.Dense(5_700_000)])
    source.save_weights(tmp_path / "large.weights.h5")
    assert load_into(line(), tmp_path / "large.weights.h5", strict=False).loaded == (KERNEL, BIAS)
    content = (tmp_path / "large.weights.h5").read_bytes()
    path = archive(tmp_path / "large.keras", [(WEIGHTS_MEMBER, content)])
    with pytest.raises(KerasdistError, match="If you trust this file, unpack"):
        load_into(line(), path, strict=False)
    assert len(read_arrays(path)) == 4


def secret_of(file):
    """Somebody else's file, which an array could pretend to be."""
    path = Path(file.filename).with_name("secret")
    path.write_bytes(bytes(range(24)))
    return path


def external_link(file):
    file[KERNEL] = h5py.ExternalLink("/etc/passwd", "/")


def link_to_another_file(file):
    with h5py.File(Path(file.filename).with_name("other.h5"), "w") as other:
        other["kernel"] = np.zeros((3, 2), "float32")
    file[KERNEL] = h5py.ExternalLink("other.h5", "/kernel")


def soft_link(file):
    file["layers/elsewhere"] = np.zeros((3, 2), "float32")
    file[KERNEL] = h5py.SoftLink("/layers/elsewhere")


def group_behind_a_link(file):
    del file["layers"]
    file["layers"] = h5py.ExternalLink("other.h5", "/layers")


def hard_link_to_itself(file):
    file["layers/dense/again"] = file["layers"]


def second_name(file):
    file["layers/again"] = file[BIAS]


def external_storage(file):
    external = [(str(secret_of(file)), 0, 24)]
    file.create_dataset(KERNEL, (3, 2), "float32", external=external)


def virtual_dataset(file):
    layout = h5py.VirtualLayout((3, 2), "float32")
    layout[:] = h5py.VirtualSource(str(secret_of(file)), "kernel", (3, 2))
    file.create_virtual_dataset(KERNEL, layout)


def chunked_shape_bomb(file):
    file.create_dataset(KERNEL, (2**40,), "float32", chunks=(1024,))


def shape_bomb(file):
    file.create_dataset(KERNEL, (2**40,), "float32")


def shape_whose_size_wraps_around(file):
    file.create_dataset(KERNEL, (2**31, 2**31, 4), "float32")


def chunk_bomb(file):
    file.create_dataset(
        KERNEL, (3, 2), "float32", chunks=(2**14, 2**14), maxshape=(None, None), compression="gzip"
    )


def compressed(file):
    file.create_dataset(KERNEL, data=np.zeros((3, 2), "float32"), compression="gzip")


def never_written(file):
    file.create_dataset(KERNEL, (3, 2), "float32")


def strings(file):
    file[KERNEL] = ["text"] * 6


def fixed_strings(file):
    file[KERNEL] = np.full((3, 2), b"text")


def ragged(file):
    dataset = file.create_dataset(KERNEL, (3,), h5py.vlen_dtype("float32"))
    dataset[0] = [1, 2]


def references(file):
    file[KERNEL] = file[BIAS].ref


def compound(file):
    file[KERNEL] = np.zeros((3, 2), [("a", "float32")])


def opaque(file):
    file[KERNEL] = np.zeros((3, 2), "V4")


def nothing(file):
    file[KERNEL] = h5py.Empty("float32")


def data_type(file):
    file[KERNEL] = np.dtype("float32")


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (external_link, f"'{KERNEL}' leads to another place or file"),
        (link_to_another_file, f"'{KERNEL}' leads to another place or file"),
        (soft_link, f"'{KERNEL}' leads to another place or file"),
        (group_behind_a_link, "'layers' leads to another place or file"),
        (hard_link_to_itself, "'layers/dense/again' is a second name"),
        (second_name, f"'{BIAS}' is a second name|'layers/again' is a second name"),
        (external_storage, f"the data of '{KERNEL}' is in another file"),
        (virtual_dataset, "chunked, compressed or virtual"),
        (chunked_shape_bomb, "chunked, compressed or virtual"),
        (shape_bomb, "not stored completely"),
        (shape_whose_size_wraps_around, "not stored completely"),
        (chunk_bomb, "chunked, compressed or virtual"),
        (compressed, "chunked, compressed or virtual"),
        (never_written, "not stored completely"),
        (strings, "holds 'object', not numbers"),
        (fixed_strings, "not numbers"),
        (ragged, "holds 'object', not numbers"),
        (references, "holds 'object', not numbers"),
        (compound, "not numbers"),
        (opaque, "not numbers"),
        (nothing, "not numbers"),
        (data_type, "is a Datatype"),
    ],
)
def test_anything_but_plain_arrays_is_refused(damage, match, tmp_path, good):
    path = tmp_path / "good.weights.h5"
    with h5py.File(path, "r+") as file:
        del file[KERNEL]
        damage(file)
    assert_refused(path, match)
    assert_refused(archive(tmp_path / "x.keras", [(WEIGHTS_MEMBER, path.read_bytes())]), match)


def test_arrays_that_lie_on_one_another_are_refused(tmp_path):
    """Each has its bytes in the file, all together are more than the file."""
    path = tmp_path / "x.weights.h5"
    with h5py.File(path, "w") as file:
        for i in range(4):
            file.create_dataset(f"layers/{i}", (100_000,), "float32")
        file["layers/0"][...] = 1
        place = file["layers/0"].id.get_offset().to_bytes(8, "little")
    size = (400_000).to_bytes(8, "little")
    content = path.read_bytes()
    assert content.count(b"\xff" * 8 + size) == 3
    path.write_bytes(content.replace(b"\xff" * 8 + size, place + size))
    with h5py.File(path) as file:
        assert file["layers/3"][5] == 1  # HDF5 itself has nothing against it.
    assert_refused(path, "its arrays have 1,600,000 bytes, more than the file")


def test_too_many_objects_are_refused(tmp_path, monkeypatch, good):
    monkeypatch.setattr(stored_arrays, "MOST_OBJECTS", 20)
    with h5py.File(tmp_path / "good.weights.h5", "r+") as file:
        for i in range(20):
            file.create_group(f"groups/{i}")
    assert_refused(tmp_path / "good.weights.h5", "more than 20 objects")


def test_names_that_are_no_text_are_refused(tmp_path, good):
    path = tmp_path / "good.weights.h5"
    with h5py.File(path, "r+") as file:
        file[b"\xff\x1b[2J"] = np.zeros(3)
    assert_refused(path, "is not a name that Keras gives")


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_broken_files_are_refused(suffix, tmp_path, good):
    if suffix == ".keras":
        content = archive(tmp_path / "whole.keras", [(WEIGHTS_MEMBER, good)]).read_bytes()
    else:
        content = good
    path = tmp_path / f"broken{suffix}"
    for part in (b"", b"text", content[:8], content[: len(content) // 2], content[:-1]):
        path.write_bytes(part)
        assert_refused(path, "it is broken")


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_a_damaged_file_is_read_or_refused(suffix, tmp_path, good):
    whole = tmp_path / f"whole{suffix}"
    archive(whole, [(WEIGHTS_MEMBER, good)]) if suffix == ".keras" else whole.write_bytes(good)
    chance = random.Random(0)
    path, refused = tmp_path / f"damaged{suffix}", 0
    for _ in range(150):
        content = bytearray(whole.read_bytes())
        for _ in range(chance.choice([1, 4, 16])):
            content[chance.randrange(len(content))] = chance.randrange(256)
        path.write_bytes(content)
        try:
            read_arrays(path)
        except KerasdistError:
            refused += 1
    assert 20 < refused < 150


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("missing.keras", "does not exist"),
        ("missing/deeper.keras", "does not exist"),
        ("x" * 300 + ".keras", "File name too long"),
        ("~nobody-of-this-name/x.keras", "cannot be read: it is broken"),
        ("folder", "has neither best.keras nor final.keras"),
        ("weights.npz", "ends in '.npz'"),
        ("model", "ends in ''"),
        ("model.weights.json", "the index of weights in several files"),
        ("pipe.keras", "is not a regular file"),
    ],
)
def test_paths_that_hold_no_weights_are_refused(name, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for file in ("weights.npz", "model", "model.weights.json"):
        Path(file).touch()
    os.mkfifo("pipe.keras")
    assert_refused(name, match)
