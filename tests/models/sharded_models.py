"""Models with custom losses and state, which the tests here train on several shards."""

import keras
import numpy as np

import kerasdist

LAYERS = keras.layers
OPS = keras.ops
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(37, 5)).astype("float32")
Y = RANDOM.uniform(0.1, 0.9, size=(37, 3)).astype("float32")
CLASSES = RANDOM.integers(0, 3, size=37)


def fit(model, data=(X, Y), **options):
    options = {"batch_size": 16, "shuffle": False, "progress": False, "devices": 2, **options}
    return kerasdist.fit(model, data, **options)


def assert_trains(model, data=(X, Y), **options):
    """Nothing is refused, and the losses are numbers."""
    assert np.isfinite(fit(model, data, **options).history["loss"]).all()


def compiled(loss, *, activation="sigmoid", kind=keras.Sequential, **options):
    model = kind([LAYERS.Dense(4, activation="tanh"), LAYERS.Dense(3, activation=activation)])
    model.compile("sgd", loss, **options)
    return model


def rmse(y_true, y_pred):
    return OPS.sqrt(OPS.mean(OPS.square(y_true - y_pred)))


def clone(build):
    keras.utils.set_random_seed(3)
    return build()


class Wrapped(keras.losses.Loss):
    """Keras does not know what it computes, so it is checked."""

    def __init__(self, inner):
        super().__init__(reduction=inner.reduction)
        self.inner = inner

    def call(self, y_true, y_pred):
        return self.inner.call(y_true, y_pred)


class State(LAYERS.Layer):
    """Keeps one number (or whole number) by a rule."""

    def __init__(self, rule, dtype_of_state="float64", start=0.0, only_training=False):
        super().__init__()
        self.rule = rule
        self.only_training = only_training
        self.dtype_of_state = dtype_of_state
        self.start = start

    def build(self, _):
        initializer = keras.initializers.Constant(self.start)
        options = {"dtype": self.dtype_of_state, "trainable": False}
        self.value = self.add_weight(shape=(), initializer=initializer, name="kept", **options)

    def call(self, x, training=False):
        if training or not self.only_training:
            self.value.assign(OPS.cast(self.rule(self.value, x), self.dtype_of_state))
        return x


def counted(value, x):
    return value + OPS.cast(OPS.shape(x)[0], value.dtype)
