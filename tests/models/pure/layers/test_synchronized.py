"""Statistics over the whole batch: Keras's own result on any number of devices."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.errors import KerasdistError
from kerasdist.models import inspection, pure
from kerasdist.models.pure.layers import synchronized
from tests.device_counts import those_here

rng = np.random.default_rng(5)
# Batches of 16 and 2: on four devices, two of them get no example of the last one.
X, Y = rng.normal(2.0, 3.0, size=(18, 4)), rng.normal(size=(18, 2))
TOKENS = rng.integers(0, 5, size=(18, 6))
TOKENS[:, 0] = 1  # No sequence is empty.
IMAGES = rng.normal(size=(18, 3, 3, 2))


@pytest.fixture(autouse=True)
def _float64():
    keras.config.set_dtype_policy("float64")
    keras.config.set_floatx("float64")


def normalized(**options):
    # A large momentum would hide wrong averages.
    return keras.layers.BatchNormalization(momentum=0.5, **options)


def dense(**options):
    inputs = keras.Input((4,))
    hidden = normalized(**options)(keras.layers.Dense(6)(inputs))
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Activation("tanh")(hidden)))


def masked(**options):
    inputs = keras.Input((6,), dtype="int32")
    hidden = keras.layers.Embedding(5, 3, mask_zero=True)(inputs)
    hidden = keras.layers.GlobalAveragePooling1D()(normalized(**options)(hidden))
    return keras.Model(inputs, keras.layers.Dense(2)(hidden))


def convolutional(**options):
    """Normalizes an axis in the middle, with weights that are partly left out."""
    inputs = keras.Input((3, 3, 2))
    hidden = keras.layers.Permute((3, 1, 2))(keras.layers.Conv2D(3, 2)(inputs))
    hidden = normalized(axis=1, scale=False, **options)(hidden)
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Flatten()(hidden)))


class Whitened(keras.layers.Layer):
    """Asks Keras for the statistics of all replicas, as a custom layer may do."""

    def __init__(self, synchronized, **options):
        super().__init__(**options)
        self.of_all = synchronized

    def call(self, x):
        mean, variance = keras.ops.moments(x, [0], keepdims=True, synchronized=self.of_all)
        return (x - mean) / keras.ops.sqrt(variance + 0.1)


def custom(**options):
    inputs = keras.Input((4,))
    hidden = Whitened(**options)(keras.layers.Dense(6)(inputs))
    return keras.Model(inputs, keras.layers.Dense(2)(hidden))


KINDS = {
    "dense": (dense, X),
    "masked": (masked, TOKENS),
    "convolutional": (convolutional, IMAGES),
    "custom": (custom, X),
}


def made(build, **options):
    keras.utils.set_random_seed(1)
    model = build(**options)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse")
    return model


OF_FIT = {"batch_size": 16, "epochs": 2, "shuffle": False, "verbose": 0}


def trained_by_keras(build, x):
    model = made(build, synchronized=False)
    return model, model.fit(x, Y, **OF_FIT).history


@pytest.fixture(scope="module")
def of_keras():
    """Keras's own models and histories, by kind."""
    found = {}

    def get(kind):
        if kind not in found:
            found[kind] = trained_by_keras(*KINDS[kind])
        return found[kind]

    return get


def assert_same(model, history, expected):
    of_keras, of_keras_history = expected
    for one, other in zip(model.get_weights(), of_keras.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-9)
    assert history["loss"] == pytest.approx(of_keras_history["loss"], abs=1e-9)


@pytest.mark.parametrize(
    ("kind", "devices"),
    [
        ("dense", 2),
        ("dense", 3),
        ("dense", 4),
        ("masked", 4),
        ("convolutional", 3),
        ("custom", 4),
    ],
)
def test_the_result_is_kerass_on_one_device(kind, devices, of_keras):
    those_here(devices)
    build, x = KINDS[kind]
    model = made(build, synchronized=True)
    history = kerasdist.fit(model, x, Y, devices=devices, **OF_FIT).history
    assert_same(model, history, of_keras(kind))


@pytest.mark.parametrize("options", [{"shards": 4}, {"deterministic": True}])
def test_the_result_is_kerass_on_several_shards_of_a_device(options, of_keras):
    those_here(2)
    model = made(dense, synchronized=True)
    history = kerasdist.fit(model, X, Y, devices=2, **options, **OF_FIT).history
    assert_same(model, history, of_keras("dense"))


def test_sync_batch_norm_synchronizes_plain_layers(of_keras):
    (devices,) = those_here(3)
    options = {"devices": devices, **OF_FIT}
    model, without = made(dense), made(dense)
    history = kerasdist.fit(model, X, Y, sync_batch_norm=True, **options).history
    assert_same(model, history, of_keras("dense"))
    kerasdist.fit(without, X, Y, **options)
    assert np.abs(without.get_weights()[0] - model.get_weights()[0]).max() > 1e-6


class Own(keras.Model):
    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((self(x, training=True) - y) ** 2)
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


def own_step(**options):
    plain = dense(**options)
    return Own(plain.inputs, plain.outputs)


def test_an_own_step_has_kerass_result():
    (devices,) = those_here(4)
    expected = made(own_step, synchronized=False)
    history = expected.fit(X, Y, **OF_FIT).history
    model = made(own_step, synchronized=True)
    found = kerasdist.fit(model, X, Y, devices=devices, **OF_FIT).history
    assert_same(model, found, (expected, history))


def test_a_layer_that_takes_statistics_to_evaluate_does_so_over_whole_batches():
    (devices,) = those_here(2)
    model = made(custom, synchronized=True)
    expected = model.evaluate(X, Y, batch_size=16, verbose=0)
    found = kerasdist.evaluate(model, X, Y, batch_size=16, devices=devices)
    assert found["loss"] == pytest.approx(expected, abs=1e-9)
    with pytest.raises(KerasdistError, match=r"synchronized=True.*devices=1, shards=1"):
        kerasdist.predict(model, X, batch_size=16, devices=devices)


def test_a_frozen_layer_does_not_synchronize():
    spec = (tf.TensorSpec((None, 4), "float64"), tf.TensorSpec((None, 2), "float64"))
    model = made(dense, synchronized=True)
    assert inspection.inspect(model, spec).synchronizes
    model.layers[2].trainable = False
    model.compile("sgd", "mse")
    assert not inspection.inspect(model, spec).synchronizes
    assert not inspection.inspect(made(dense), spec).synchronizes


def test_keras_asks_the_replaced_functions_for_moments(monkeypatch):
    """`BatchNormalization._moments` and `_compute_moments_sync`, with `_reduction_axes`."""
    asked = []
    monkeypatch.setattr(synchronized, "_keras_moments", recorded("layer", asked))
    monkeypatch.setattr(synchronized, "_keras_sync", recorded("function", asked))
    layer = keras.layers.BatchNormalization(axis=1)
    layer.build((None, 3, 2))
    assert layer._reduction_axes == [0, 2]
    x = tf.ones((4, 3, 2), "float64")
    with pure.patched():
        layer(x, training=True)
        keras.ops.moments(x, [0], synchronized=True)
        keras.ops.moments(x, [0])
    assert asked == ["layer", "function"]
    layer(x, training=True)  # Put back.
    assert len(asked) == 2


def recorded(name, asked):
    def moments(*args):
        asked.append(name)
        return tf.zeros(3, "float64"), tf.ones(3, "float64")

    return moments
