"""Checkpoints are found by what people call them, and broken ones are named."""

import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import KerasdistError
from kerasdist.model_files.tf_checkpoints.files import is_checkpoint, open_checkpoint

v1 = tf.compat.v1


def save_tf1(folder, arrays, *, name="model.ckpt", version=v1.train.SaverDef.V2, **options):
    """Writes variables of TensorFlow 1 and returns what the names of the files begin with."""
    with tf.Graph().as_default(), v1.Session() as session:
        for key, value in arrays.items():
            v1.get_variable(key, initializer=np.asarray(value))
        session.run(v1.global_variables_initializer())
        saver = v1.train.Saver(write_version=version, **options)
        return saver.save(session, f"{folder}/{name}")


def line():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="line")])


KERNEL = np.arange(6, dtype="float32").reshape(3, 2)
ARRAYS = {"line/kernel": KERNEL, "line/bias": np.ones(2, "float32")}


def loads(path):
    model = line()
    kerasdist.load_weights(model, path)
    return np.array_equal(model.get_weights()[0], KERNEL)


@pytest.mark.parametrize(
    "suffix", ["", ".index", ".meta", ".data-00000-of-00001"], ids=lambda s: s or "prefix"
)
def test_any_file_of_a_checkpoint_names_it(tmp_path, suffix):
    prefix = save_tf1(tmp_path, ARRAYS)
    assert is_checkpoint(prefix + suffix)
    assert loads(prefix + suffix)


def test_a_prefix_needs_no_ckpt_in_its_name(tmp_path):
    prefix = save_tf1(tmp_path, ARRAYS, name="weights-7")
    assert is_checkpoint(prefix)
    assert loads(prefix)


def test_a_folder_means_its_newest_checkpoint(tmp_path):
    save_tf1(tmp_path, {"line/kernel": 0 * KERNEL}, name="model.ckpt-1")
    save_tf1(tmp_path, ARRAYS, name="model.ckpt-2")
    assert loads(tmp_path)


def test_a_folder_may_have_been_moved(tmp_path):
    (tmp_path / "old").mkdir()
    save_tf1(tmp_path / "old", ARRAYS)
    state = tmp_path / "old" / "checkpoint"
    path = f"{tmp_path}/old/model.ckpt"
    state.write_text(f'model_checkpoint_path: "{path}"\nall_model_checkpoint_paths: "{path}"\n')
    shutil.move(tmp_path / "old", tmp_path / "new")
    assert loads(tmp_path / "new")


def test_the_first_format_of_tensorflow_1_is_read(tmp_path):
    prefix = save_tf1(tmp_path, ARRAYS, version=v1.train.SaverDef.V1)
    assert loads(prefix)


def test_several_data_files_are_read(tmp_path):
    prefix = save_tf1(tmp_path, ARRAYS, sharded=True)
    assert loads(prefix)


def test_a_partitioned_variable_is_one_array(tmp_path):
    with tf.Graph().as_default(), v1.Session() as session:
        partitioner = v1.fixed_size_partitioner(3)
        with v1.variable_scope("line"):
            kernel = v1.get_variable("kernel", (3, 2), partitioner=partitioner)
        session.run(v1.global_variables_initializer())
        value = session.run(tf.concat(list(kernel), axis=0))
        prefix = v1.train.Saver().save(session, f"{tmp_path}/model.ckpt")
    model = line()
    kerasdist.load_weights(model, prefix)
    np.testing.assert_array_equal(model.get_weights()[0], value)


def test_a_missing_checkpoint_is_named_with_what_is_there(tmp_path):
    with pytest.raises(KerasdistError, match=r"the folder '.*' has no checkpoint"):
        open_checkpoint(tmp_path / "model.ckpt-9")
    save_tf1(tmp_path, ARRAYS, name="model.ckpt-1")
    with pytest.raises(KerasdistError, match=r"no checkpoint '.*model.ckpt-9'.*model.ckpt-1\."):
        open_checkpoint(tmp_path / "model.ckpt-9")
    with pytest.raises(KerasdistError, match=r"nope' does not exist"):
        open_checkpoint(tmp_path / "nope" / "model.ckpt-9")


def test_a_missing_file_is_named(tmp_path):
    prefix = save_tf1(tmp_path, ARRAYS)
    (tmp_path / "model.ckpt.data-00000-of-00001").unlink()
    message = r"model.ckpt.data-00000-of-00001 is missing\. Expected complete files.*Copy all"
    with pytest.raises(KerasdistError, match=message):
        open_checkpoint(prefix)
    save_tf1(tmp_path, ARRAYS)
    (tmp_path / "model.ckpt.index").unlink()
    with pytest.raises(KerasdistError, match=r"the file model.ckpt.index is missing"):
        open_checkpoint(prefix)


def test_one_of_several_data_files_is_missing(tmp_path):
    prefix = save_tf1(tmp_path, ARRAYS)
    data = tmp_path / "model.ckpt.data-00000-of-00001"
    data.rename(tmp_path / "model.ckpt.data-00000-of-00003")
    with pytest.raises(KerasdistError, match=r"data-00001-of-00003, .*data-00002-of-00003 are mis"):
        open_checkpoint(prefix)


def test_truncated_files_are_refused(tmp_path):
    prefix = save_tf1(tmp_path, ARRAYS)
    data = tmp_path / "model.ckpt.data-00000-of-00001"
    content = data.read_bytes()
    data.write_bytes(content[:-5])
    with pytest.raises(KerasdistError, match=r"have 27 bytes, but its arrays need 32; truncated"):
        open_checkpoint(prefix)
    data.write_bytes(content)
    index = tmp_path / "model.ckpt.index"
    index.write_bytes(index.read_bytes()[:20])
    with pytest.raises(KerasdistError, match=r"cannot be read: .*Copy all files"):
        open_checkpoint(prefix)


def test_damaged_data_leaves_the_model_as_it_is(tmp_path):
    prefix = save_tf1(tmp_path, ARRAYS)
    data = tmp_path / "model.ckpt.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[-3] ^= 255  # In the kernel, which is read after the bias.
    data.write_bytes(content)
    model = line()
    before = [np.copy(value) for value in model.get_weights()]
    with pytest.raises(KerasdistError, match=r"'line/(kernel|bias)' cannot be read: .*Checksum"):
        kerasdist.load_weights(model, prefix)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_broken_state_file_is_named(tmp_path):
    (tmp_path / "checkpoint").write_text("rubbish")
    with pytest.raises(KerasdistError, match=r"checkpoint' cannot be read"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("name", ["model.keras", "model.weights.h5", "runs", "nope"])
def test_other_paths_are_not_checkpoints(tmp_path, name):
    (tmp_path / "runs").mkdir()
    assert not is_checkpoint(tmp_path / name)
