"""Weights from files: what is taken over, what is left alone, and what is refused."""

import doctest
import io
import os
import pickle
import random
import sys
import tempfile
import tracemalloc
import zipfile
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import kerasdist
from kerasdist import KerasdistError
from kerasdist.model_files import stored_arrays, weights
from kerasdist.model_files.stored_arrays import read_arrays
from kerasdist.model_files.weights import Report, load_into
from kerasdist.runs import folder as runs

KERNEL, BIAS = "layers/dense/vars/0", "layers/dense/vars/1"


def line(units=2):
    """The smallest model there is."""
    return keras.Sequential([keras.Input((3,)), layers.Dense(units)])


def sequential():
    return keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(4, name="own_name"),
            layers.BatchNormalization(),
            layers.Dropout(0.5),
            layers.Dense(2),
        ]
    )


def functional():
    tokens = keras.Input((6,), dtype="int32")
    x = layers.LSTM(3)(layers.Embedding(11, 4)(tokens))
    head = keras.Sequential([layers.Dense(4, activation="relu"), layers.Dense(2)])
    return keras.Model(tokens, head(layers.Concatenate()([x, x])))


class Subclassed(kerasdist.Model):
    def __init__(self, blocks):
        super().__init__()
        self.blocks = [[layers.Dense(3), layers.BatchNormalization()] for _ in range(blocks)]
        self.heads = {"a": layers.Dense(2), "b": line()}
        self.noise = layers.GaussianNoise(0.1)
        self.seeds = keras.random.SeedGenerator(3)

    def build(self, shape):
        self.scale = self.add_weight(shape=(3,), name="scale")
        self.built = True

    def call(self, x, training=False):
        for dense, normalization in self.blocks:
            x = normalization(dense(x), training=training)
        x = self.noise(x * self.scale, training=training)
        return self.heads["a"](x) + self.heads["b"](x)


def subclassed():
    model = Subclassed(2)
    model(np.zeros((1, 3), "float32"))
    return model


def in_policy(policy):
    def build():
        keras.config.set_dtype_policy(policy)
        model = sequential()
        keras.config.set_dtype_policy("float32")
        return model

    return build


def disturbed(model, seed):
    """The model with other values in every variable of it and of its optimizer."""
    model.compile("adam", "mse", metrics=["mae"])
    model.optimizer.build(model.trainable_variables)
    generator = np.random.default_rng(seed)
    for variable in [*model.variables, *model.optimizer.variables]:
        value = generator.integers(1, 99, variable.shape)
        variable.assign(value if "int" in variable.dtype else value / 100)
    return model


def values(variables):
    return [keras.ops.convert_to_numpy(variable) for variable in variables]


def assert_same(first, second):
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)


def not_weights(model):
    """What no file may change: the optimizer, the metrics and the seed generators."""
    weights = {id(variable) for variable in model.weights}
    seeds = [v for v in model.variables if id(v) not in weights]
    return [*model.optimizer.variables, *seeds]


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
@pytest.mark.parametrize(
    "build",
    [sequential, functional, subclassed, in_policy("mixed_float16"), in_policy("bfloat16")],
    ids=["sequential", "functional", "subclassed", "mixed_float16", "bfloat16"],
)
def test_weights_come_over_and_nothing_else(build, suffix, tmp_path):
    source, target = disturbed(build(), 1), disturbed(build(), 2)
    file = tmp_path / f"source{suffix}"
    source.save(file) if suffix == ".keras" else source.save_weights(file)
    before = values(not_weights(target))
    assert len(before) > 5
    report = load_into(target, file, strict=True)
    assert_same(source.get_weights(), target.get_weights())
    assert_same(values(not_weights(target)), before)
    assert len(report.loaded) == len(target.weights)
    assert report.complete


@pytest.mark.parametrize("module", [stored_arrays, weights])
def test_the_examples_run(module, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    failures, tried = doctest.testmod(module)
    assert tried > 0
    assert not failures


def test_names_are_those_of_keras_layout(tmp_path):
    model = subclassed()
    model.compile("sgd", "mse")
    model.save(tmp_path / "model.keras")
    found = read_arrays(tmp_path / "model.keras", {__name__.split(".")[0]})
    assert {n: a.shape for n, a in found.items()} == {
        "blocks/container/batch_normalization/vars/0": (3,),
        "blocks/container/batch_normalization/vars/1": (3,),
        "blocks/container/batch_normalization/vars/2": (3,),
        "blocks/container/batch_normalization/vars/3": (3,),
        "blocks/container/dense/vars/0": (3, 3),
        "blocks/container/dense/vars/1": (3,),
        "blocks/container_1/batch_normalization/vars/0": (3,),
        "blocks/container_1/batch_normalization/vars/1": (3,),
        "blocks/container_1/batch_normalization/vars/2": (3,),
        "blocks/container_1/batch_normalization/vars/3": (3,),
        "blocks/container_1/dense/vars/0": (3, 3),
        "blocks/container_1/dense/vars/1": (3,),
        "heads/dense/vars/0": (3, 2),
        "heads/dense/vars/1": (2,),
        "heads/sequential/layers/dense/vars/0": (3, 2),
        "heads/sequential/layers/dense/vars/1": (2,),
        "optimizer/vars/0": (),
        "optimizer/vars/1": (),
        "vars/0": (3,),
    }


def test_a_run_on_two_devices_loads_into_a_model_on_one(tmp_path, regression):
    trained = sequential()
    trained.compile("adam", "mse")
    kerasdist.fit(
        trained, regression, batch_size=8, devices=2, run_dir=tmp_path / "run", progress=False
    )
    model = sequential()
    assert load_into(model, tmp_path / "run", strict=True).complete
    assert_same(model.get_weights(), trained.get_weights())
    model.compile("adam", "mse")
    kerasdist.fit(model, regression, batch_size=8, devices=1, progress=False)


def test_the_best_model_of_a_run_comes_before_its_last(tmp_path):
    best, final, model = disturbed(line(), 1), disturbed(line(), 2), line()
    final.save(tmp_path / "final.keras")
    load_into(model, tmp_path, strict=True)
    assert_same(model.get_weights(), final.get_weights())
    best.save(tmp_path / "best.keras")
    load_into(model, str(tmp_path), strict=True)
    assert_same(model.get_weights(), best.get_weights())


def test_a_run_that_holds_weights_only(tmp_path):
    class Undescribed(keras.Sequential):
        def get_config(self):
            raise NotImplementedError

    source, model = Undescribed([keras.Input((3,)), layers.Dense(2)]), line()
    assert runs.save_model(source, tmp_path / "final.keras") == "weights"
    assert load_into(model, tmp_path, strict=True).complete
    assert_same(model.get_weights(), source.get_weights())


def test_another_architecture_takes_what_matches_and_says_so(tmp_path):
    source = keras.Sequential(
        [keras.Input((5,)), layers.Dense(4), layers.BatchNormalization(), layers.Dense(10)]
    )
    disturbed(source, 1).save(tmp_path / "source.keras")
    target = keras.Sequential(
        [keras.Input((5,)), layers.Dense(4), layers.Dense(3), layers.Dense(3), layers.PReLU()]
    )
    disturbed(target, 2)
    before = target.get_weights()
    report = load_into(target, tmp_path / "source.keras", strict=False)
    assert report == Report(
        loaded=(KERNEL, BIAS),
        missing=("layers/dense_2/vars/0", "layers/dense_2/vars/1", "layers/p_re_lu/vars/0"),
        unexpected=tuple(f"layers/batch_normalization/vars/{i}" for i in range(4)),
        mismatched=(
            ("layers/dense_1/vars/0", "float32 (4, 10)", "float32 (4, 3)"),
            ("layers/dense_1/vars/1", "float32 (10,)", "float32 (3,)"),
        ),
    )
    assert_same(target.get_weights()[:2], source.get_weights()[:2])
    assert_same(target.get_weights()[2:], before[2:])
    assert report.summary().splitlines() == [
        "loaded 2 of the model's 7 arrays",
        "  not in the file: 'layers/dense_2/vars/0', 'layers/dense_2/vars/1', "
        "'layers/p_re_lu/vars/0'",
        "  not in the model: 'layers/batch_normalization/vars/0', "
        "'layers/batch_normalization/vars/1', 'layers/batch_normalization/vars/2', "
        "'layers/batch_normalization/vars/3'",
        "  of another shape or type: 'layers/dense_1/vars/0' is float32 (4, 10), not float32 "
        "(4, 3), 'layers/dense_1/vars/1' is float32 (10,), not float32 (3,)",
    ]
    with pytest.raises(KerasdistError, match="does not fit the model 'Sequential'") as error:
        load_into(target, tmp_path / "source.keras", strict=True)
    assert report.summary() in str(error.value)


def test_long_lists_are_cut(tmp_path):
    report = Report((), tuple(f"layers/{i}" for i in range(500)), ("\x1b[2J" * 99,), ())
    assert report.summary().count("'layers/") == 10
    assert "and 490 more" in report.summary()
    assert "\x1b" not in report.summary()
    assert len(report.summary()) < 1000


def test_nothing_in_common_is_an_error_with_names_of_both(tmp_path):
    functional().save(tmp_path / "other.keras")
    model = disturbed(line(), 1)
    before = model.get_weights()
    with pytest.raises(KerasdistError, match="of which nothing fits") as error:
        load_into(model, tmp_path / "other.keras", strict=False)
    assert KERNEL in str(error.value)
    assert "layers/embedding/vars/0" in str(error.value)
    assert_same(model.get_weights(), before)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("float64", "float32"),
        ("float32", "float64"),
        ("bfloat16", "float32"),
        ("float32", "bfloat16"),
    ],
)
def test_floats_are_cast(theirs, ours, tmp_path):
    def build(dtype):
        return keras.Sequential([keras.Input((3,)), layers.Dense(2, dtype=dtype)])

    source, model = disturbed(build(theirs), 1), build(ours)
    source.save_weights(tmp_path / "source.weights.h5")
    assert load_into(model, tmp_path / "source.weights.h5", strict=True).complete
    for a, b in zip(source.get_weights(), model.get_weights(), strict=True):
        assert (a.dtype.name, b.dtype.name) == (theirs, ours)
        np.testing.assert_array_equal(a.astype(ours), b)


def test_integers_are_no_floats(tmp_path):
    source, model = line(), line()
    source.quantize("int8")
    source.save_weights(tmp_path / "source.weights.h5")
    report = load_into(model, tmp_path / "source.weights.h5", strict=False)
    assert report.mismatched == ((KERNEL, "int8 (3, 2)", "float32 (3, 2)"),)
    assert report.loaded == (BIAS,)


def test_optimizers_inside_and_of_other_names_stay_as_they_are(tmp_path):
    class Pair(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = disturbed(line(), 1)
            self.second = keras.optimizers.Adam()

        def call(self, x):
            return self.inner(x)

    source, model = Pair(), Pair()
    for pair in (source, model):
        pair(np.zeros((1, 3)))
        pair.second.build(pair.trainable_variables)
    source.inner.optimizer.learning_rate = 0.5
    source.second.learning_rate = 0.5
    source.save_weights(tmp_path / "source.weights.h5")
    assert "second/vars/0" in read_arrays(tmp_path / "source.weights.h5")
    assert "inner/optimizer/vars/0" in read_arrays(tmp_path / "source.weights.h5")
    report = load_into(model, tmp_path / "source.weights.h5", strict=True)
    assert report.loaded == ("inner/layers/dense/vars/0", "inner/layers/dense/vars/1")
    assert float(model.second.learning_rate) != 0.5
    assert float(model.inner.optimizer.learning_rate) != 0.5


def test_an_uncompiled_model_takes_the_weights_of_a_compiled_one(tmp_path):
    source, model = disturbed(line(), 1), line()
    source.save(tmp_path / "source.keras")
    assert load_into(model, tmp_path / "source.keras", strict=True).complete


def test_a_model_that_is_not_built(tmp_path):
    line().save(tmp_path / "line.keras")
    with pytest.raises(KerasdistError, match="not built") as error:
        load_into(keras.Sequential([layers.Dense(2)]), tmp_path / "line.keras", strict=False)
    assert "Expected a built model" in str(error.value)


def test_a_model_that_keras_cannot_load_either(tmp_path):
    class Float8(layers.Layer):
        def build(self, shape):
            value = tf.cast(tf.zeros(3), "float8_e4m3fn")
            self.add_weight((3,), lambda *_, **__: value, dtype="float8_e4m3fn", trainable=False)

    line().save(tmp_path / "line.keras")
    model = keras.Sequential([keras.Input((3,)), Float8()])
    with pytest.raises(KerasdistError, match="Received the model 'Sequential', in which 'layers/"):
        load_into(model, tmp_path / "line.keras", strict=False)


def test_nothing_stays_in_the_temporary_folder(tmp_path, monkeypatch):
    line().save(tmp_path / "line.keras")
    functional().save(tmp_path / "other.keras")
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    load_into(line(), tmp_path / "line.keras", strict=True)
    with pytest.raises(KerasdistError):
        load_into(line(), tmp_path / "other.keras", strict=True)
    assert not list(temporary.iterdir())
    temporary.rmdir()
    with pytest.raises(KerasdistError, match="Set TMPDIR to another folder"):
        load_into(line(), tmp_path / "line.keras", strict=True)


# What a stranger may send.


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
        assert message.startswith("Received ")
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
    assert_refused(path, "names the code of a function; nothing of it was run")


def test_a_lambda_layer_in_a_file_of_keras_2_is_refused(tmp_path, marker):
    lambda_model(marker).save(tmp_path / "lambda.h5")
    with h5py.File(tmp_path / "lambda.h5") as file:
        assert "__lambda__" in file.attrs["model_config"]
    assert_refused(tmp_path / "lambda.h5", "layout of Keras 2")
    archive(tmp_path / "x.keras", [(stored_arrays.MEMBER, (tmp_path / "lambda.h5").read_bytes())])
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
        [("config.json", config.replace("MARKER", str(marker))), (stored_arrays.MEMBER, good)],
    )
    assert_refused(path, "names the (class|layer)|cannot be read: JSONDecodeError")
    assert "payload_of_a_test" not in sys.modules


class Payload:
    def __init__(self, marker):
        self.marker = marker

    def __reduce__(self):
        return (open, (str(self.marker), "w"))


def test_pickles_are_not_read(tmp_path, marker):
    objects = np.array([Payload(marker)], dtype=object)
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, objects, allow_pickle=True)
    np.savez(npz, **{KERNEL: objects, stored_arrays.MEMBER: objects})
    for name, content, match in [
        ("pickle.keras", pickle.dumps(Payload(marker)), "not a zip file"),
        ("npy.keras", npy.getvalue(), "not a zip file"),
        ("npz.keras", npz.getvalue(), "has no members 'model.weights.h5'"),
        ("pickle.weights.h5", pickle.dumps(Payload(marker)), "cannot be read"),
        ("npy.h5", npy.getvalue(), "cannot be read"),
    ]:
        (tmp_path / name).write_bytes(content)
        assert_refused(tmp_path / name, match)
    path = archive(tmp_path / "weights.keras", [("model.weights.npz", npz.getvalue())])
    assert_refused(path, "has no members 'model.weights.h5'")
    path = archive(tmp_path / "member.keras", [(stored_arrays.MEMBER, npy.getvalue())])
    assert_refused(path, "cannot be read")
    with open(tmp_path / "npy.keras", "rb") as file:
        np.load(file, allow_pickle=True)
    assert marker.exists()  # The sample is a real one.
    marker.unlink()


def test_members_with_paths_go_nowhere(tmp_path, good):
    folder = tmp_path / "a/b"
    folder.mkdir(parents=True)
    evil = [("../../evil", "x"), (str(tmp_path / "evil"), "x"), ("assets/../../../evil", "x")]
    before = sorted(tmp_path.rglob("*"))
    path = archive(folder / "x.keras", [*evil, (stored_arrays.MEMBER, good)])
    assert load_into(line(), path, strict=True).complete
    assert sorted(tmp_path.rglob("*")) == sorted([*before, path])
    path = archive(folder / "y.keras", [(f"../{stored_arrays.MEMBER}", good)])
    assert_refused(path, "has no members")


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_weights_twice_in_an_archive_are_refused(tmp_path, good):
    path = archive(
        tmp_path / "x.keras", [(stored_arrays.MEMBER, good), (stored_arrays.MEMBER, good)]
    )
    assert_refused(path, "has 2 members")


def test_an_archive_that_unpacks_to_much_more_than_the_model_is_refused(tmp_path):
    zeros = bytes(stored_arrays.SLACK_BYTES + (1 << 20))
    path = archive(tmp_path / "x.keras", [(stored_arrays.MEMBER, zeros)], zipfile.ZIP_DEFLATED)
    assert path.stat().st_size < 1 << 18
    assert_refused(path, "whose weights have 68,157,440 bytes. Expected at most 67,")


def test_an_archive_that_lies_about_its_size_is_refused(tmp_path, monkeypatch):
    for module in (stored_arrays, weights):
        monkeypatch.setattr(module, "SLACK_BYTES", 1000)
    size = 1 << 25
    path = archive(
        tmp_path / "x.keras", [(stored_arrays.MEMBER, bytes(size))], zipfile.ZIP_DEFLATED
    )
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
    path = archive(tmp_path / "x.keras", [(stored_arrays.MEMBER, good)], method)
    assert_refused(path, "compressed in an unusual way")


def test_a_file_may_be_much_larger_than_the_model(tmp_path):
    """Only what matches is read of an HDF5 file; an archive is read into memory."""
    source = keras.Sequential([keras.Input((3,)), layers.Dense(2), layers.Dense(5_700_000)])
    source.save_weights(tmp_path / "large.weights.h5")
    assert load_into(line(), tmp_path / "large.weights.h5", strict=False).loaded == (KERNEL, BIAS)
    content = (tmp_path / "large.weights.h5").read_bytes()
    path = archive(tmp_path / "large.keras", [(stored_arrays.MEMBER, content)])
    with pytest.raises(KerasdistError, match="if you know where this one comes from, unpack"):
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
        (shape_bomb, "not stored to its end"),
        (shape_whose_size_wraps_around, "not stored to its end"),
        (chunk_bomb, "chunked, compressed or virtual"),
        (compressed, "chunked, compressed or virtual"),
        (never_written, "not stored to its end"),
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
    assert_refused(
        archive(tmp_path / "x.keras", [(stored_arrays.MEMBER, path.read_bytes())]), match
    )


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
    assert_refused(path, "whose arrays have 1,600,000 bytes, more than itself")


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
    assert_refused(path, "is no name that Keras gives")


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_broken_files_are_refused(suffix, tmp_path, good):
    if suffix == ".keras":
        content = archive(tmp_path / "whole.keras", [(stored_arrays.MEMBER, good)]).read_bytes()
    else:
        content = good
    path = tmp_path / f"broken{suffix}"
    for part in (b"", b"text", content[:8], content[: len(content) // 2], content[:-1]):
        path.write_bytes(part)
        assert_refused(path, "which cannot be read")


@pytest.mark.parametrize("suffix", [".keras", ".weights.h5"])
def test_a_damaged_file_is_read_or_refused(suffix, tmp_path, good):
    whole = tmp_path / f"whole{suffix}"
    archive(whole, [(stored_arrays.MEMBER, good)]) if suffix == ".keras" else whole.write_bytes(
        good
    )
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
        ("missing.keras", "which does not exist"),
        ("missing/deeper.keras", "which does not exist"),
        ("x" * 300 + ".keras", "cannot be read: File name too long"),
        ("~nobody-of-this-name/x.keras", "cannot be read"),
        ("folder", "has neither best.keras nor final.keras"),
        ("weights.npz", "whose name ends with '.npz'"),
        ("model", "whose name ends with ''"),
        ("model.weights.json", "the index of weights in several files"),
        ("pipe.keras", "is no regular file"),
    ],
)
def test_paths_that_hold_no_weights_are_refused(name, match, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    for file in ("weights.npz", "model", "model.weights.json"):
        Path(file).touch()
    os.mkfifo("pipe.keras")
    assert_refused(name, match)
