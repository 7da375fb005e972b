"""A loss whose value adds up over parts of a batch, to rounding, but whose gradients do not."""

import doctest

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.models.probing import gradient_sums
from kerasdist.models.probing.gradient_sums import Gradient, gap, gradient_of

ops, layers = keras.ops, keras.layers
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(64, 12))


def spread(values):
    """A term over the whole batch: small beside 1,000, but its gradient is not."""
    return ops.sum(ops.square(ops.mean(values, axis=0) - 1))


class Computed(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return 1000 + ops.mean(ops.square(y_pred)) + spread(y_pred)


class Added(layers.Layer):
    def call(self, values):
        self.add_loss(1000 + ops.mean(ops.square(values)) + spread(values))
        return values


class Stepping(keras.Model):
    def train_step(self, x):
        x = x[0] if isinstance(x, tuple) else x
        with tf.GradientTape() as tape:
            values = self(x, training=True)
            distance = ops.mean(ops.square(values)) + 1e-3 * spread(values)
        weights = self.trainable_weights
        self.optimizer.apply_gradients(zip(tape.gradient(distance, weights), weights, strict=True))
        return {"distance": distance}


def made(kind):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((12,))
    values = layers.Dense(3)(layers.Dense(8, activation="tanh")(inputs))
    if kind is Added:
        return keras.Model(inputs, Added()(values))
    return kind(inputs, values)


def own_loss(targets, outputs):
    return 1000 + ops.mean(ops.square(outputs - targets)) + spread(outputs)


def trained(fit, dtype, kind, **options):
    keras.config.set_floatx(dtype)
    keras.config.set_dtype_policy(dtype)
    try:
        loss = {"loss": own_loss} if kind is keras.Model else {}
        model = made(kind)
        model.compile(keras.optimizers.SGD(0.05), **loss)
        y = (X[:, :3].astype(dtype),) if loss else ()
        fit(
            model, X.astype(dtype), *y, batch_size=16, epochs=2, shuffle=False, verbose=0, **options
        )
    finally:
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")
    return model.get_weights()


@pytest.mark.filterwarnings("ignore:.*trains on one device")
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", [keras.Model, Computed, Added])
def test_a_small_term_over_the_whole_batch_is_found(kind, dtype, capsys):
    """It was hidden by the rest of the loss, and then computed on each shard."""
    expected = trained(keras.Model.fit, dtype, kind)
    found = trained(kerasdist.fit, dtype, kind, devices=2)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-10 if dtype == "float64" else 1e-5)


@pytest.mark.parametrize("kind", [keras.Model, Computed])
def test_whole_batch_loss_false_refuses_it(kind):
    message = r"its gradients for 16 examples .* differ by .* when they are cut in two"
    with pytest.raises(kerasdist.InexactLossError, match=message):
        trained(kerasdist.fit, "float32", kind, devices=2, whole_batch_loss=False)


@pytest.mark.filterwarnings("ignore:.*trains on one device")
def test_a_small_term_of_an_own_step_is_found():
    expected = trained(keras.Model.fit, "float64", Stepping)
    found = trained(kerasdist.fit, "float64", Stepping, devices=2)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-12)


def test_added_losses_are_compared_though_the_whole_batch_was_asked_for(capsys):
    expected = trained(keras.Model.fit, "float64", Added)
    found = trained(kerasdist.fit, "float64", Added, devices=2, whole_batch_loss=True)
    for mine, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-12)


def test_gradients_of_embeddings_are_compared_by_their_rows():
    def sliced(rows, values):
        values = tf.constant(values, tf.float32)
        return gradient_of(tf.IndexedSlices(values, tf.constant(rows), tf.constant([9, 2])))

    whole = sliced([5, 2, 5], [[1, 1], [2, 2], [3, 3]])
    assert whole.rows.tolist() == [2, 5]
    parts = [sliced([5, 5], [[2, 2], [6, 6]])], [sliced([2], [[4, 4]])]
    assert gap([whole], parts, [0.5, 0.5]) == 0
    assert gap([whole], parts, [0.5, 0.25]) > 0.1
    dense = np.zeros((9, 2), "float32")
    dense[2], dense[5] = 2, 4
    assert gap([Gradient(dense)], parts, [0.5, 0.5]) == 0
    assert gap([None], [[None], [None]], [0.5, 0.5]) == 0


def test_examples_of_docstrings_run():
    assert doctest.testmod(gradient_sums, extraglobs={"np": np}).failed == 0


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "mixed_float16"])
def test_rounding_is_no_false_alarm(policy):
    """Deep layers and random data, whose gradients nearly cancel out."""

    def own(targets, outputs):
        return keras.losses.sparse_categorical_crossentropy(targets, outputs, from_logits=True)

    keras.utils.set_random_seed(0)
    keras.config.set_dtype_policy(policy)
    try:
        x = inputs = keras.Input((16, 16, 3))
        for filters in (8, 16, 32):
            x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
            x = layers.Conv2D(filters, 3, 2, padding="same", activation="relu")(x)
        outputs = layers.Dense(4, dtype="float32")(layers.Flatten()(x))
    finally:
        keras.config.set_dtype_policy("float32")
    model = keras.Model(inputs, outputs)
    model.compile("sgd", own)
    images = RANDOM.normal(size=(32, 16, 16, 3)).astype("float32")
    labels = RANDOM.integers(0, 4, 32)
    options = {"batch_size": 32, "devices": 2, "whole_batch_loss": False, "progress": False}
    kerasdist.fit(model, images, labels, **options)
