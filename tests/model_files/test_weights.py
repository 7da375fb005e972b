"""Weights of files in a model: what is loaded, and what stays as it is."""

import doctest
import tempfile

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
from kerasdist.runs.trained_model import save_model
from tests.model_files.small_models import (
    BIAS,
    KERNEL,
    assert_same,
    disturbed,
    functional,
    in_policy,
    line,
    not_weights,
    sequential,
    subclassed,
    values,
)


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
    assert save_model(source, tmp_path / "final.keras") == "weights"
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
    with pytest.raises(KerasdistError, match=r"Nothing in .* fits the model") as error:
        load_into(model, tmp_path / "other.keras", strict=False)
    assert KERNEL in str(error.value)
    assert "layers/embedding/vars/0" in str(error.value)
    assert_same(model.get_weights(), before)


def test_nothing_fits_but_a_layer_of_the_model(tmp_path):
    """It is not loaded there by itself: that would be a guess. The message has the code."""
    file = tmp_path / "line.weights.h5"
    line().save_weights(file)
    inner = keras.Sequential([keras.Input((3,)), layers.Dense(2)], name="inner")
    outer = keras.Sequential([keras.Input((3,)), layers.Identity(), inner], name="outer")
    model = keras.Sequential([keras.Input((3,)), outer, layers.Flatten()])
    before = model.get_weights()
    with pytest.raises(KerasdistError, match=r"Nothing in .* fits the model") as error:
        load_into(model, file, strict=False)
    call = "model.get_layer('outer').get_layer('inner')"
    assert f"it fits a layer: `kerasdist.load_weights({call}, {str(file)!r})`" in str(error.value)
    assert_same(model.get_weights(), before)
    load_into(model.get_layer("outer").get_layer("inner"), file, strict=True)


def with_backbones(count, units=2):
    """A model of `count` backbones."""
    image = keras.Input((3,))
    parts = [keras.Sequential([keras.Input((3,)), layers.Dense(4)]) for _ in range(count)]
    outputs = layers.Concatenate()([part(image) for part in parts] + [image])
    return keras.Model(image, layers.Dense(units)(layers.Dense(5)(outputs))), parts


def test_a_backbone_is_found_inside_the_saved_model(tmp_path):
    saved, (theirs,) = with_backbones(1)
    saved.save(tmp_path / "pre.keras")
    _, (ours,) = with_backbones(1, units=7)
    report = kerasdist.load_weights(ours, tmp_path / "pre.keras")
    assert report.complete
    assert_same(ours.get_weights(), theirs.get_weights())
    # Two parts that fit would be a guess, and part of a part would be half a backbone.
    with_backbones(2)[0].save(tmp_path / "two.keras")
    larger = keras.Sequential([keras.Input((3,)), layers.Dense(4), layers.Dense(9)])
    for model, file in ((ours, "two.keras"), (larger, "pre.keras")):
        before = model.get_weights()
        with pytest.raises(KerasdistError, match=r"Nothing in .* fits the model"):
            kerasdist.load_weights(model, tmp_path / file)
        assert_same(model.get_weights(), before)


def test_a_missing_file_may_have_been_a_checkpoint(tmp_path):
    with pytest.raises(KerasdistError, match=r"does not exist\. .*TensorFlow checkpoint"):
        kerasdist.load_weights(line(), tmp_path / "nothere")


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


@pytest.mark.filterwarnings("ignore:Layer InputLayer does not have a `quantize` method")
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
    with pytest.raises(KerasdistError, match="of the model 'Sequential' cannot be read: 'layers/"):
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
