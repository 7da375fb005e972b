"""Which arrays of a checkpoint come into a model, and what is refused."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import kerasdist
from kerasdist import KerasdistError
from kerasdist.model_files import initial_weights
from kerasdist.model_files.tf_checkpoints import files
from tests.model_files.tf_checkpoints.test_files import ARRAYS, KERNEL, line, save_tf1


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("module", [initial_weights, files])
def test_the_examples_run(module):
    import doctest

    failures, tried = doctest.testmod(module)
    assert tried > 0
    assert not failures


def network(names=(None,) * 6):
    """Layers of several kinds, two of one shape, and a model in the model."""
    conv, norm, depth, first, second, out = names
    inner = keras.Sequential(
        [
            keras.Input((6, 6, 4)),
            layers.DepthwiseConv2D(3, name=depth),
            layers.BatchNormalization(name=norm),
        ],
        name="inner",
    )
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, name=conv),
            inner,
            layers.GlobalAveragePooling2D(),
            layers.Dense(4, name=first),
            layers.Dense(4, name=second),
            layers.Dropout(0.5),
            layers.Dense(2, name=out),
        ]
    )


def shaken(model, seed=1):
    random = np.random.default_rng(seed)
    model.set_weights([random.normal(size=w.shape) for w in model.get_weights()])
    return model


def assert_same_weights(model, other):
    for a, b in zip(model.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def written_by_checkpoint(model):
    model.compile("adam", "mse")
    x = np.zeros((4, 8, 8, 3))
    model.fit(x, np.zeros((4, 2)), verbose=0)  # With the optimizer's slots.
    shaken(model)
    return tf.train.Checkpoint(model=model, optimizer=model.optimizer).save("saved/ckpt")


def written_by_saved_model(model):
    tf.saved_model.save(model, "saved")
    return "saved"


def written_by_export(model):
    model.export("saved", verbose=False)
    return "saved"


@pytest.mark.parametrize(
    "write", [written_by_checkpoint, written_by_saved_model, written_by_export]
)
def test_what_tensorflow_2_writes_is_read(write):
    """The layers have other automatic names in the second model: Keras counts on."""
    source, target = shaken(network()), network()
    assert [w.path for w in source.weights] != [w.path for w in target.weights]
    report = kerasdist.load_weights(target, write(source))
    assert_same_weights(source, target)
    assert report.complete
    assert report.version == 2
    assert not report.by_shape
    if write is written_by_checkpoint:
        assert len(report.left_out["the optimizer's state"]) > 10


class WeightsOfKeras2(tf.Module):
    """Has its variables where `model.save_weights("ckpt")` of Keras 2 had them."""

    def __init__(self, model):
        super().__init__()
        owners = [layer for layer in model.layers if layer.weights]
        for number, layer in enumerate(owners):
            scope = tf.Module()
            for weight in layer.weights:
                setattr(scope, weight.name, tf.Variable(weight.numpy()))
            setattr(self, f"layer_with_weights-{number}", scope)


def test_the_object_names_of_keras_2_are_read():
    def build(*names):
        sizes = (8, 8, 8, 2)
        dense = [layers.Dense(n, name=m) for n, m in zip(sizes, names, strict=True)]
        return keras.Sequential([keras.Input((8,)), *dense])

    source, target = shaken(build("a", "b", "c", "d")), build("z", "y", "x", "w")
    path = tf.train.Checkpoint(WeightsOfKeras2(source)).save("ckpt")
    report = kerasdist.load_weights(target, path)
    assert_same_weights(source, target)
    assert len(report.by_shape) == 8
    assert report.loaded["y/kernel"] == "layer_with_weights-1/kernel"


def test_batch_norm_of_tensorflow_1(tmp_path):
    random = np.random.default_rng(0)
    leaves = ("gamma", "beta", "moving_mean", "moving_variance")
    arrays = {f"tower/bn/{leaf}": random.normal(size=3).astype("float32") for leaf in leaves}
    arrays |= {"tower/bn/moving_mean/biased": np.zeros(3, "float32")}
    model = keras.Sequential([keras.Input((3,)), layers.BatchNormalization(name="bn")])
    report = kerasdist.load_weights(model, save_tf1(tmp_path, arrays))
    for weight in model.weights:
        np.testing.assert_array_equal(weight.numpy(), arrays[f"tower/bn/{weight.name}"])
    assert report.left_out == {"the optimizer's state": ["tower/bn/moving_mean/biased"]}


def test_layers_of_one_shape_are_ambiguous_without_an_order(tmp_path):
    """A draft of a mapping is written. Edited, it is the mapping."""
    arrays = {f"{name}/w": i + np.ones((4, 4), "float32") for i, name in enumerate("ba")}
    arrays["out/w"] = np.ones((4, 2), "float32")

    def build():
        sizes = {"first": 4, "second": 4, "out": 2}
        dense = [layers.Dense(n, use_bias=False, name=m) for m, n in sizes.items()]
        return keras.Sequential([keras.Input((4,)), *dense])

    model, path = build(), save_tf1(tmp_path, arrays)
    before = [np.copy(value) for value in model.get_weights()]
    message = r"not clear.* 2 weights.*init-map.json.*\n  first/kernel \(4, 4\): a/w or b/w\?\n"
    with pytest.raises(KerasdistError, match=message):
        kerasdist.load_weights(model, path)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    draft = json.loads((tmp_path / "init-map.json").read_text())
    assert draft == {
        "first/kernel": ["a/w", "b/w"],
        "second/kernel": ["a/w", "b/w"],
        "out/kernel": "out/w",
    }
    with pytest.raises(KerasdistError, match=r"\['a/w', 'b/w'\] for 'first/kernel'.*Choose one"):
        kerasdist.load_weights(model, path, init_map="init-map.json")
    draft |= {"first/kernel": "b/w", "second/kernel": "a/w"}
    (tmp_path / "init-map.json").write_text(json.dumps(draft))
    kerasdist.load_weights(model, path, init_map="init-map.json")
    first, second, _ = model.get_weights()
    assert (first[0, 0], second[0, 0]) == (1, 2)


@pytest.mark.parametrize(
    ("name", "found", "guess"),
    [("dense", "fbb", "fb"), ("dense", "net/fb", "net/fc"), ("dense/kernel", "fbb/w", "fb/w")],
)
def test_a_scope_that_a_mapping_misspells_gets_a_guess(tmp_path, name, found, guess):
    arrays = {"fb/w": np.ones((4, 2), "float32"), "net/fc/w": np.ones((4, 2), "float32")}
    dense = layers.Dense(2, use_bias=False, name="dense")
    model = keras.Sequential([keras.Input((4,)), dense])
    with pytest.raises(KerasdistError, match=f"'{found}' for .*Did you mean '{guess}'"):
        kerasdist.load_weights(model, save_tf1(tmp_path, arrays), init_map={name: found})


def test_an_earlier_draft_is_not_overwritten(tmp_path):
    path = save_tf1(tmp_path, {"other": np.ones(7, "float32")})
    (tmp_path / "init-map.json").write_text("mine")
    with pytest.raises(KerasdistError, match=r"(?s)Nothing in .*init-map-2.json.*other \(7,\)"):
        kerasdist.load_weights(line(), path)
    assert (tmp_path / "init-map.json").read_text() == "mine"


def test_numbers_of_automatic_names_are_not_believed(tmp_path):
    """The checkpoint has one `dense`, and the model two: which of them it is cannot be known."""
    arrays = {"dense_1/kernel": np.ones((3, 3), "float32")}

    model = keras.Sequential(
        [keras.Input((3,)), *[layers.Dense(3, use_bias=False) for _ in range(2)]]
    )
    with pytest.raises(KerasdistError, match=r"It is not clear"):
        kerasdist.load_weights(model, save_tf1(tmp_path, arrays))


def test_an_order_that_disagrees_is_refused():
    """Each shape occurs once, but the layers are the other way round."""
    source = keras.Sequential(
        [keras.Input((4,)), layers.Dense(4, name="a"), layers.Dense(2, name="b")]
    )
    target = keras.Sequential(
        [keras.Input((4,)), layers.Dense(2, name="x"), layers.Reshape((2,)), layers.Dense(2)]
    )
    path = tf.train.Checkpoint(model=source).save("ckpt")
    report = kerasdist.load_weights(target, path)  # Only one layer fits.
    assert list(report.loaded) == ["x/kernel", "x/bias"]
    with keras.name_scope("other"):
        swapped = Swapped()
    swapped(np.zeros((1, 2)))
    with pytest.raises(KerasdistError, match=r"It is not clear"):
        kerasdist.load_weights(swapped, path)


class Swapped(keras.Model):
    def __init__(self):
        super().__init__()
        self.p = layers.Dense(2, name="p")
        self.q = layers.Dense(4, name="q")

    def call(self, x):
        x = keras.ops.concatenate([x, x], axis=-1)
        return self.p(x), self.q(x)


def test_transposed_arrays_are_refused(tmp_path):
    path = save_tf1(tmp_path, {"line/kernel": KERNEL.T})
    message = r"fit only transposed: line/kernel \(2, 3\) for line/kernel \(3, 2\)\. Expected the"
    with pytest.raises(KerasdistError, match=message):
        kerasdist.load_weights(line(), path)
    model = line()
    arrays = {"line/kernel": KERNEL.T, "line/bias": np.full(2, 7, "float32")}
    path = save_tf1(tmp_path, arrays)
    kerasdist.load_weights(model, path, init_map={"line/kernel": None})
    assert model.get_weights()[1].tolist() == [7, 7]


def test_other_kinds_of_numbers_are_refused(tmp_path):
    path = save_tf1(tmp_path, {**ARRAYS, "line/bias": np.ones(2, "int32")})
    with pytest.raises(KerasdistError, match=r"'line/bias' .* is int32 \(2,\), and .* float32"):
        kerasdist.load_weights(line(), path)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
def test_numbers_are_converted_to_the_model_s_type(tmp_path, dtype):
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, name="line", dtype=dtype)])
    kerasdist.load_weights(model, save_tf1(tmp_path, ARRAYS))
    np.testing.assert_array_equal(np.asarray(model.get_weights()[0], "float32"), KERNEL)


def test_averages_that_are_not_there_are_refused(tmp_path):
    path = save_tf1(tmp_path, ARRAYS)
    with pytest.raises(KerasdistError, match=r"has no moving averages"):
        kerasdist.load_weights(line(), path, init_averages=True)


def test_options_of_checkpoints_need_a_checkpoint(tmp_path):
    model = line()
    model.save_weights(tmp_path / "line.weights.h5")
    for option in ({"init_map": {}}, {"init_averages": True}):
        (name,) = option
        with pytest.raises(KerasdistError, match=rf"`{name}` for .*not a TensorFlow checkpoint"):
            kerasdist.load_weights(model, tmp_path / "line.weights.h5", **option)
        model.compile("sgd", "mse")
        with pytest.raises(KerasdistError, match=rf"`{name}` without `init_from`"):
            kerasdist.fit(model, np.ones((1, 3)), np.ones((1, 2)), verbose=0, **option)


def test_only_built_models_are_loaded(tmp_path):
    path = save_tf1(tmp_path, ARRAYS)
    with pytest.raises(KerasdistError, match="is not built"):
        kerasdist.load_weights(keras.Sequential([layers.Dense(2)]), path)
    with pytest.raises(KerasdistError, match="of type str"):
        kerasdist.load_weights("model", path)
