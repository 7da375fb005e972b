"""State is as in Keras: it adds up over shards, or the model trains whole on one device."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import KerasdistError
from kerasdist.models import inspection, verdicts
from tests.models.sharded_models import (
    LAYERS,
    OPS,
    State,
    X,
    Y,
    clone,
    counted,
    fit,
)

# About a minute in all: `.ci/full` runs them.
pytestmark = pytest.mark.slow

RULES = {
    "examples": (counted, "float64"),
    "examples as int": (counted, "int64"),
    "sum": (lambda value, x: value + OPS.sum(x), "float64"),
    "steps": (lambda value, x: value + 1, "float64"),
    "steps as int": (lambda value, x: value + 1, "int32"),
    "steps as a byte": (lambda value, x: value + 1, "uint8"),
    "moving mean": (lambda value, x: 0.9 * value + 0.1 * OPS.mean(x), "float64"),
    "last mean": (lambda value, x: OPS.mean(x), "float64"),
}


@pytest.fixture
def float64():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "devices", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(4, marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("only_training", [False, True])
@pytest.mark.usefixtures("float64")
def test_state_that_adds_up_is_kerass(rule, devices, only_training):
    function, dtype = RULES[rule]

    def build():
        layer = State(function, dtype, only_training=only_training)
        model = keras.Sequential([LAYERS.Dense(3), layer, LAYERS.Dense(3)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model, layer

    x, y = X.astype("float64"), Y.astype("float64")
    (reference, expected), (model, found) = clone(build), clone(build)
    options = {"batch_size": 8, "shuffle": False, "epochs": 2}
    reference.fit(x, y, validation_data=(x[:13], y[:13]), verbose=0, **options)
    reference.evaluate(x, y, batch_size=8, verbose=0)
    reference.predict(x, batch_size=8, verbose=0)
    fit(model, (x, y), validation_data=(x[:13], y[:13]), devices=devices, **options)
    kerasdist.evaluate(model, (x, y), batch_size=8, devices=devices)
    kerasdist.predict(model, x, batch_size=8, devices=devices)
    assert float(found.value) == pytest.approx(float(expected.value), rel=1e-9)


NOT_RULES = {
    "maximum": lambda value, x: OPS.maximum(value, OPS.max(x)),
    "minimum": lambda value, x: OPS.minimum(value, OPS.min(x)),
    "product": lambda value, x: (value + 1) * OPS.exp(OPS.sum(x) / 50),
    "variance": lambda value, x: 0.9 * value + 0.1 * OPS.var(x),
}


@pytest.mark.parametrize("start", [0.0, 1000.0, -1000.0])
@pytest.mark.parametrize("rule", NOT_RULES)
@pytest.mark.usefixtures("float64")
def test_state_that_does_not_add_up_is_found(rule, start):
    layer = State(NOT_RULES[rule], "float64", start)
    model = keras.Sequential([LAYERS.Dense(3), layer])
    model.compile("sgd", "mse")
    with pytest.raises(KerasdistError, match=r"state '.*kept'.*Expected a mean.*shards=1"):
        fit(model, whole_batch_loss=False)


@pytest.mark.parametrize("rule", NOT_RULES)
@pytest.mark.usefixtures("float64")
def test_state_that_does_not_add_up_is_kerass_on_one_device(rule, capsys):
    def build():
        layer = State(NOT_RULES[rule], "float64")
        model = keras.Sequential([LAYERS.Dense(3), layer])
        model.compile("sgd", "mse")
        return model, layer

    (reference, expected), (model, found) = clone(build), clone(build)
    history = reference.fit(X, Y, batch_size=16, shuffle=False, verbose=0).history
    assert fit(model, progress=True).history["loss"] == pytest.approx(history["loss"], rel=1e-9)
    assert float(found.value) == pytest.approx(float(expected.value), rel=1e-9)
    for one, other in zip(model.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9)
    assert "trains on one device" in capsys.readouterr().out


def test_state_after_batch_normalization_and_dropout_is_no_false_alarm():
    layer = State(RULES["moving mean"][0], "float32")
    layers = [LAYERS.Dense(3), LAYERS.BatchNormalization(), LAYERS.Dropout(0.5), layer]
    model = keras.Sequential(layers)
    model.compile("sgd", "mse")
    fit(model)
    assert float(layer.value) != 0


class Moving(LAYERS.Layer):
    def build(self, shape):
        options = {"initializer": "zeros", "trainable": False, "name": "kept"}
        self.mean = self.add_weight(shape=(shape[-1],), **options)

    def call(self, x, training=False):
        if training:
            self.mean.assign(0.9 * self.mean + 0.1 * OPS.mean(x, axis=0))
        return x


class Chance(LAYERS.Layer):
    """Adds what `draw` makes of the inputs."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def call(self, x, training=False):
        return x + OPS.cast(self.draw(x), x.dtype) if training else x


CHANCE = {
    "tf.random": lambda x: tf.random.normal(tf.shape(x)),
    "categorical": lambda x: keras.random.categorical(x, 1, seed=1),
    "shuffle": lambda x: keras.random.shuffle(x, seed=1),
    "infinite": lambda x: x * np.inf,
}


@pytest.mark.parametrize("name", CHANCE)
def test_state_is_judged_by_itself_when_the_loss_has_no_verdict(name):
    layer = Moving()
    model = keras.Sequential([layer, Chance(CHANCE[name]), LAYERS.Dense(3)])
    model.compile("sgd", "mse")
    if name == "infinite":
        rules = state_rules_of(model)
        assert list(rules.values()) == ["mean"]
        return
    fit(model, (X[:16], Y[:16]))
    np.testing.assert_allclose(layer.mean.numpy(), 0.1 * X[:16].mean(0), rtol=1e-4, atol=1e-7)


def state_rules_of(model, *, training=True):
    """The rules for a model whose own state is its first layer's."""
    model.build((None, 5))
    findings = inspection.Findings(own_state=tuple(model.layers[0].weights))
    return verdicts.verdict(model, lambda: (X, Y), findings, 2, training=training).rules


@pytest.mark.parametrize("name", ["tf.random", "categorical"])
def test_state_that_chance_decides_gets_no_rule(name):
    layer = State(lambda _, x: OPS.mean(OPS.cast(CHANCE[name](x), "float32")), "float32")
    model = keras.Sequential([layer, LAYERS.Dense(3)])
    model.compile("sgd", "mse")
    assert state_rules_of(model) == {}


def test_state_that_is_never_finite_gets_no_rule():
    layer = State(lambda _, x: OPS.mean(x) * np.inf, "float32")
    model = keras.Sequential([layer, LAYERS.Dense(3)])
    model.compile("sgd", "mse")
    assert state_rules_of(model) == {}


class Annealed(State):
    def call(self, x, training=False):
        factor = tf.gather(tf.linspace(0.5, 1.0, 100), self.value)
        return super().call(x, training) * factor


def test_state_that_is_an_index_is_not_moved_out_of_its_range():
    layer = Annealed(lambda value, x: value + 1, "int32")
    model = keras.Sequential([layer, LAYERS.Dense(3)])
    model.compile("sgd", "mse")
    fit(model)
    assert int(layer.value) == 3


def test_state_for_one_size_of_batch_is_refused_by_name():
    layer = State(lambda _, x: OPS.sum(x + OPS.ones((16, 5))), "float32")
    model = keras.Sequential([layer, LAYERS.Dense(3)])
    model.compile("sgd", "mse")
    told = r"'Sequential'.*part of a batch.*Error: .*Expected.*`devices=1, shards=1`"
    with pytest.raises(KerasdistError, match=told):
        fit(model, (X[:32], Y[:32]), whole_batch_loss=False)
