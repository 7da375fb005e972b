"""Models whose outputs for an example depend on other examples are told from others."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.errors import InexactLossError
from kerasdist.models import pure
from kerasdist.models.fields import Example
from kerasdist.models.whole_batch.mixed_rows import refuse_mixed_rows
from tests.device_counts import those_here

LAYERS, OPS = keras.layers, keras.ops
rng = np.random.default_rng(2)
X, Y = rng.normal(size=(18, 4)).astype("float32"), rng.normal(size=(18, 2)).astype("float32")


class Own(LAYERS.Layer):
    """A layer of somebody else's, which computes a function."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def call(self, x, training=False):
        return self.function(x)


def made(*layers):
    model = keras.Sequential([keras.Input((4,)), LAYERS.Dense(6), *layers, LAYERS.Dense(2)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


def built(model, x=X):
    spec = tf.TensorSpec((None, *x.shape[1:]), x.dtype)
    pure.build(model, Example((spec,), spec, tf.TensorSpec((None, 2)), None))
    return model


def check(model, x=X, training=True, targets=True):
    batch = (tf.constant(x), tf.constant(Y[: len(x)])) if targets else tf.constant(x)
    refuse_mixed_rows(built(model, x), batch, training=training, targets=targets)


MIXING = {
    "centered": lambda x: x - OPS.mean(x, axis=0),
    "standard deviation of the batch": lambda x: OPS.concatenate(
        [x, OPS.ones_like(x[:, :1]) * OPS.mean(OPS.std(x, axis=0))], axis=1
    ),
    "previous example": lambda x: x + 0.1 * OPS.roll(x, 1, axis=0),
    "attention over the batch": lambda x: OPS.softmax(x @ OPS.transpose(x)) @ x,
    "normalized by the largest": lambda x: x / OPS.max(OPS.abs(x)),
}


@pytest.mark.parametrize("name", MIXING)
@pytest.mark.parametrize("targets", [True, False])
def test_a_layer_that_mixes_examples_is_found(name, targets):
    with pytest.raises(InexactLossError, match=r"computes output 0 .*other examples.*shards=1"):
        check(made(Own(MIXING[name])), training=targets, targets=targets)


@pytest.mark.parametrize("targets", [True, False])
def test_a_layer_for_one_size_of_batch_is_found(targets):
    fixed = Own(lambda x: OPS.reshape(x, (9, 6)))
    model = keras.Sequential([LAYERS.Dense(6), fixed, LAYERS.Dense(2)])
    model.compile("sgd", "mse")
    model(X[:9])
    batch = (tf.constant(X[:9]), tf.constant(Y[:9])) if targets else tf.constant(X[:9])
    with pytest.raises(InexactLossError, match="cannot be computed on a part of a batch"):
        refuse_mixed_rows(model, batch, training=targets, targets=targets)


class Subclassed(keras.Model):
    def __init__(self, function):
        super().__init__()
        self.first, self.second, self.function = LAYERS.Dense(6), LAYERS.Dense(2), function
        self.compile("sgd", "mse")

    def call(self, x, training=False):
        return self.second(self.function(self.first(x)))


def with_operations(function):
    inputs = keras.Input((4,))
    model = keras.Model(inputs, LAYERS.Dense(2)(function(LAYERS.Dense(6)(inputs))))
    model.compile("sgd", "mse")
    return model


def with_lambda(function):
    return made(LAYERS.Lambda(function))


@pytest.mark.parametrize("build", [Subclassed, with_operations, with_lambda])
def test_it_is_found_in_models_functions_and_lambdas(build):
    model = build(MIXING["centered"])
    assert pure.has_own_calls(built(model))
    with pytest.raises(InexactLossError):
        check(model)
    check(build(lambda x: x - OPS.mean(x, axis=1, keepdims=True)))


class Noisy(LAYERS.Layer):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(1)

    def call(self, x):
        noise = keras.random.normal(OPS.shape(x), seed=self.seeds)
        return x + noise + tf.random.uniform(tf.shape(x)) * keras.random.uniform(x.shape[1:])


NOT_MIXING = {
    "elementwise": lambda: [Own(lambda x: OPS.tanh(x) * 2.0)],
    "noise for each example": lambda: [Noisy()],
    "another order by chance": lambda: [Own(lambda x: OPS.take(x, _order(x), axis=0))],
    "dropout and batch normalization": lambda: [
        Own(OPS.tanh),
        LAYERS.Dropout(0.5),
        LAYERS.BatchNormalization(),
        LAYERS.BatchNormalization(synchronized=True),
    ],
    "through rows of another shape": lambda: [
        Own(lambda x: OPS.reshape(OPS.reshape(x, (-1, 3)) ** 2, (-1, 6)))
    ],
    "deep": lambda: [Own(lambda x: 30.0 * x), *(LAYERS.Dense(40, "tanh") for _ in range(20))],
}


def _order(x):
    return keras.random.shuffle(OPS.arange(OPS.shape(x)[0]))


@pytest.mark.parametrize("name", NOT_MIXING)
@pytest.mark.parametrize("training", [True, False])
def test_other_layers_are_no_false_alarm(name, training):
    check(made(*NOT_MIXING[name]()), training=training)


def test_low_precision_is_no_false_alarm():
    keras.config.set_dtype_policy("mixed_bfloat16")
    check(made(*NOT_MIXING["deep"]()))


def test_a_value_without_rows_is_left_to_the_check_of_losses():
    inputs = keras.Input((4,))
    outputs = {"rows": LAYERS.Dense(2)(inputs), "mean": Own(lambda x: OPS.mean(x))(inputs)}
    model = keras.Model(inputs, outputs)
    model.compile("sgd", {"rows": "mse"})
    batch = (tf.constant(X), {"rows": tf.constant(Y)})
    refuse_mixed_rows(model, batch, training=True, targets=True)


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        ([], False),
        ([LAYERS.BatchNormalization(), LAYERS.Dropout(0.5), LAYERS.Activation("tanh")], False),
        ([LAYERS.Reshape((2, 3)), LAYERS.GRU(3)], False),
        ([keras.Sequential([LAYERS.Dense(3)])], False),
        ([keras.Sequential([LAYERS.Dense(3), Own(OPS.tanh)])], True),
        ([LAYERS.Lambda(OPS.tanh)], True),
        ([type("Dense", (LAYERS.Dense,), {})(3)], True),
        ([LAYERS.Reshape((2, 3)), LAYERS.RNN(type("Cell", (LAYERS.GRUCell,), {})(3))], True),
    ],
)
def test_models_of_kerass_layers_need_no_check(layers, expected):
    assert pure.has_own_calls(built(made(*layers))) is expected


def test_a_class_that_keeps_kerass_call_needs_no_check():
    class Named(keras.Sequential):
        def compute_metrics(self, *args, **kwargs):
            return super().compute_metrics(*args, **kwargs)

    assert not pure.has_own_calls(built(Named([keras.Input((4,)), LAYERS.Dense(2)])))


def test_such_a_model_has_kerass_result_and_says_so(capsys):
    (devices,) = those_here(2)
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    models = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        models.append(made(Own(MIXING["standard deviation of the batch"])))
    reference, model = models
    options = {"batch_size": 8, "epochs": 2, "shuffle": False}
    expected = reference.fit(X, Y, verbose=0, validation_data=(X, Y), **options).history
    found = kerasdist.fit(model, X, Y, validation_data=(X, Y), devices=devices, **options).history
    assert "trains on one device" in capsys.readouterr().out
    for name in ("loss", "val_loss"):
        assert found[name] == pytest.approx(expected[name], rel=1e-9)
    for one, other in zip(model.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12)
    expected = reference.predict(X, batch_size=8, verbose=0)
    answers = kerasdist.predict(model, X, batch_size=8, devices=devices)
    np.testing.assert_allclose(answers, expected, atol=1e-12)
    with pytest.raises(InexactLossError, match="computes output 0"):
        kerasdist.fit(model, X, Y, devices=devices, whole_batch_loss=False, **options)
