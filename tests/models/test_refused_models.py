"""Models that cannot be trained, and data that a model cannot read: a clear error."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from tests.bad_input import LABELS, Fields, X, Y, batches, dataset, refusal, regressor


def test_a_model_that_is_not_compiled(not_compiled):
    message = refusal(keras.Sequential([keras.layers.Dense(1)]), (X, Y))
    assert "'Sequential' is not compiled" in message
    assert "model.compile(optimizer=..., loss=...)" in message


def test_a_model_compiled_without_a_loss(not_compiled):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd")
    message = refusal(model, (X, Y))
    assert "'Sequential' has no loss" in message
    assert "compute_loss" in message


def test_something_that_is_no_model(not_compiled):
    assert "`model` of type int" in refusal(3, (X, Y))
    assert "returned list" in refusal(list, (X, Y))


def test_precision_of_a_model_that_was_made_with_another(not_compiled):
    message = refusal(regressor(), (X, Y), precision="mixed_bfloat16")
    assert "precision='mixed_bfloat16'" in message
    assert "'dense" in message
    assert "'float32'" in message
    assert "set_dtype_policy('mixed_bfloat16')" in message
    unbuilt = keras.Sequential([keras.layers.Dense(1)])
    unbuilt.compile("sgd", "mse")
    assert "'float32'" in refusal(unbuilt, (X, Y), precision="mixed_bfloat16")
    keras.config.set_dtype_policy("mixed_bfloat16")
    mixed = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1, dtype="float32")])
    mixed.compile("sgd", "mse")
    assert "'mixed_bfloat16'" in refusal(mixed, (X, Y), precision="float32")


def test_precision_of_a_function_s_model_with_a_float32_head_is_accepted():
    def build():
        layers = [keras.layers.Dense(2), keras.layers.Dense(1, dtype="float32")]
        model = keras.Sequential(layers)
        model.compile("sgd", "mse")
        return model

    kerasdist.fit(build, (X, Y), batch_size=5, precision="mixed_bfloat16", progress=False)


def test_gradient_accumulation_of_the_optimizer(not_compiled):
    model = regressor(keras.optimizers.Adam(gradient_accumulation_steps=4))
    message = refusal(model, (X, Y))
    assert "'Adam' with `gradient_accumulation_steps=4`" in message
    assert "`shards`" in message


def test_ema_overwriting_of_the_optimizer(not_compiled):
    model = regressor(keras.optimizers.SGD(use_ema=True, ema_overwrite_frequency=7))
    message = refusal(model, (X, Y))
    assert "'SGD' with `ema_overwrite_frequency=7`" in message
    assert "fit(ema=...)" in message


def test_a_field_that_the_data_lacks(not_compiled):
    data = {"image": X, "extras": X, "label": LABELS}
    message = refusal(Fields(), data)
    assert "the fields ['extras', 'image', 'label']" in message
    assert "`Fields.features` names 'extra'" in message
    assert "Did you mean 'extras'?" in message
    data = {"image": X, "extra": X, "lable": LABELS}
    message = refusal(Fields(), tf.data.Dataset.from_tensor_slices(data))
    assert "`Fields.targets` names 'label'" in message
    assert "Did you mean 'lable'?" in message


def test_an_input_that_the_data_lacks(not_compiled):
    inputs = {"left": keras.Input((4,), name="left"), "right": keras.Input((4,), name="right")}
    output = keras.layers.Dense(1)(inputs["left"] + inputs["right"])
    model = keras.Model(inputs, output)
    model.compile("sgd", "mse")
    message = refusal(model, ({"left": X, "rihgt": X}, Y))
    assert "the features ['left', 'rihgt']" in message
    assert "the input 'right'" in message
    assert "Did you mean 'rihgt'?" in message


def test_data_without_targets(not_compiled):
    assert "features alone and no targets" in refusal(regressor(), X)
    message = refusal(regressor(), {"x": X, "y": Y})
    assert "the fields ['x', 'y'] and no targets" in message
    assert "kerasdist.Model" in message


@pytest.mark.parametrize("form", [lambda *d: d, dataset, batches])
def test_features_of_a_shape_that_does_not_fit(form, not_compiled):
    options = {"batch_size": None} if form is batches else {}
    message = refusal(regressor(), form(np.ones((10, 7), "float32"), Y), **options)
    assert "float32(None, 7)" in message
    assert "'Sequential'" in message
    assert "4" in message


@pytest.mark.parametrize("target", [np.ones((10, 3)), np.ones((10, 2, 2))])
def test_targets_of_a_shape_that_does_not_fit(target, not_compiled):
    message = refusal(regressor(), (X, target.astype("float32")))
    assert f"targets of the shape (None, {str(target.shape[1:])[1:-1].strip(',')})" in message
    assert "outputs of the shape (None, 1)" in message


def test_one_hot_targets_of_another_width(not_compiled):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "softmax")])
    model.compile("sgd", "categorical_crossentropy")
    message = refusal(model, (X, np.eye(4, dtype="float32")[LABELS]))
    assert "float32(None, 4)" in message


def test_a_type_that_the_model_cannot_read(not_compiled):
    class Lookup(keras.layers.Layer):
        def call(self, indices):
            return tf.gather(tf.eye(4), indices)

    model = keras.Sequential([Lookup(), keras.layers.Flatten(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    message = refusal(model, (np.zeros((10, 2)), Y))
    assert "float32(None, 2)" in message
    assert "int32" in message


@pytest.mark.parametrize(
    "data",
    [
        (np.array(["a", "b"] * 5), Y),
        (["a", "b"] * 5, Y),
        dataset(np.array(["a", "b"] * 5), Y),
        [("a", 1.0), ("b", 2.0)],
        batches(np.array(["a", "b"] * 5), Y),
    ],
    ids=["array", "list", "dataset", "examples", "generator function"],
)
def test_t13_strings_as_features(data, not_compiled):
    options = {"batch_size": None} if callable(data) else {}
    message = refusal(regressor(), data, **options)
    assert "strings as the feature 'x'" in message
    assert "StringLookup" in message


def test_t13_the_field_with_strings_is_named(not_compiled):
    data = {"image": X, "extra": ["word"] * 10, "label": LABELS}
    assert "strings as the feature 'extra'" in refusal(Fields(), data)
    data = {"image": X, "extra": X, "label": ["cat"] * 10}
    assert "strings as the target 'label'" in refusal(Fields(), data)


def test_a_frozen_model_can_be_evaluated():
    model = regressor()
    model.trainable = False
    assert kerasdist.evaluate(model, (X, Y))["loss"] > 0


def test_prediction_names_what_it_cannot_read():
    with pytest.raises(kerasdist.KerasdistError, match=r"float32\(None, 7\)"):
        kerasdist.predict(keras.Sequential([keras.Input((4,))]), np.ones((3, 7), "float32"))
    with pytest.raises(kerasdist.KerasdistError, match="strings as the feature 'x'"):
        kerasdist.predict(regressor(), np.array(["a", "b"]))


ONE_HOT = np.eye(3, dtype="float32")[LABELS]


def of_three(loss, units=3):
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(units)])
    model.compile("sgd", loss)
    return model


@pytest.mark.parametrize(
    ("loss", "units", "targets", "hint"),
    [
        ("sparse_categorical_crossentropy", 3, ONE_HOT, "use `keras.losses.CategoricalCrossent"),
        (kerasdist.SmoothedCrossentropy(0.1), 3, ONE_HOT, "use `keras.losses.CategoricalCrossent"),
        ("categorical_crossentropy", 3, LABELS, "use `keras.losses.SparseCategoricalCrossent"),
        ("binary_crossentropy", 3, LABELS, "use `keras.losses.SparseCategoricalCrossentropy`"),
        ("binary_crossentropy", 1, ONE_HOT, "use `keras.losses.CategoricalCrossentropy`"),
        ("mse", 3, LABELS, "use `keras.losses.SparseCategoricalCrossentropy`"),
    ],
)
def test_targets_for_another_loss_get_a_hint(loss, units, targets, hint, not_compiled):
    assert hint in refusal(of_three(loss, units), (X, targets))


@pytest.mark.parametrize(
    ("shape", "given", "hint"),
    [
        ((8, 8, 3), (3, 8, 8), "move them: `np.moveaxis(x, 1, -1)`"),
        ((8, 8), (64,), "use `x.reshape(-1, 8, 8)`"),
        ((4,), (5,), "The model's input has the shape (None, 4), the data (None, 5)."),
    ],
)
def test_features_of_another_shape_get_a_hint(shape, given, hint, not_compiled):
    inputs = keras.Input(shape)
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Flatten()(inputs * 2.0)))
    model.compile("sgd", "mse")
    assert hint in refusal(model, (np.zeros((10, *given), "float32"), Y))


def test_a_loss_without_a_reduction():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", keras.losses.MeanSquaredError(reduction="none"))
    message = refusal(model, (X, Y))
    assert "not one number per batch" in message
    assert "reduction='sum'" in message
