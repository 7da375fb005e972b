"""A loss that does not add up over shards is found, and computed on the whole batch."""

import contextlib
import inspect

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.errors import InexactLossError
from kerasdist.models import pure
from tests.models.sharded_models import (
    CLASSES,
    LAYERS,
    OPS,
    RANDOM,
    Wrapped,
    X,
    Y,
    assert_trains,
    clone,
    compiled,
    fit,
    rmse,
)

# About a minute in all: `.ci/full` runs them.
pytestmark = pytest.mark.slow


def ratio_of_sums(y_true, y_pred):
    return OPS.sum(OPS.abs(y_true - y_pred)) / OPS.sum(OPS.abs(y_true))


NOT_MEANS = {
    "Circle": (lambda: keras.losses.Circle(), CLASSES),
    "Dice": (lambda: keras.losses.Dice(), Y),
    "Tversky": (lambda: keras.losses.Tversky(), Y),
    "cosine over the batch": (lambda: keras.losses.CosineSimilarity(axis=0), Y),
    "rmse": (lambda: rmse, Y),
    "ratio of sums": (lambda: ratio_of_sums, Y),
}


@pytest.mark.parametrize("name", NOT_MEANS)
def test_a_loss_over_the_whole_batch_is_found(name):
    loss, y = NOT_MEANS[name]
    with pytest.raises(InexactLossError, match=r"not a mean over examples.*shards=1"):
        fit(compiled(loss()), (X, y), whole_batch_loss=False)
    reference, model = (clone(lambda: compiled(loss())) for _ in range(2))
    expected = fit(reference, (X, y), devices=1, shards=1).history["loss"]
    assert fit(model, (X, y)).history["loss"] == pytest.approx(expected, rel=1e-5)


def test_the_refusal_names_the_loss_and_both_numbers():
    with pytest.raises(InexactLossError, match=r"\(rmse\).* it is [\d.]+ for 16 .* [\d.]+ when"):
        fit(compiled(rmse), whole_batch_loss=False)


@pytest.mark.parametrize("loss", [rmse, ratio_of_sums])
def test_rows_that_are_alike_do_not_hide_it(loss):
    x, y = np.ones((37, 5), "float32"), np.full((37, 3), 0.5, "float32")
    with pytest.raises(InexactLossError):
        fit(compiled(loss), (x, y), whole_batch_loss=False)


def test_rows_that_are_alike_and_whole_numbers_do_not_hide_it():
    tokens, y = np.ones((37, 5), "int32"), np.zeros((37, 5, 3), "int32")
    model = keras.Sequential([LAYERS.Embedding(4, 2), LAYERS.Dense(3, bias_initializer="ones")])
    model.compile("sgd", rmse)
    with pytest.raises(InexactLossError):
        fit(model, (tokens, y), whole_batch_loss=False)


def test_only_the_last_rows_differ():
    x, y = np.ones((64, 5), "float32"), np.full((64, 3), 0.5, "float32")
    y[40:] = -3.0
    with pytest.raises(InexactLossError):
        fit(compiled(rmse), (x, y), batch_size=64, whole_batch_loss=False)


def test_on_one_shard_any_loss_is_trained():
    reference, model = (clone(lambda: compiled(rmse)) for _ in range(2))
    expected = reference.fit(X, Y, batch_size=16, shuffle=False, verbose=0).history["loss"]
    found = fit(model, devices=1, shards=1).history["loss"]
    assert found == pytest.approx(expected, rel=1e-5)


def loss_classes():
    found = [getattr(keras.losses, name) for name in sorted(dir(keras.losses))]
    kinds = [x for x in found if isinstance(x, type) and issubclass(x, keras.losses.Loss)]
    return sorted(set(kinds) - {keras.losses.Loss}, key=lambda kind: kind.__name__)


@pytest.mark.parametrize("kind", loss_classes(), ids=lambda kind: kind.__name__)
def test_every_loss_of_keras_is_known_per_example_or_checked(kind):
    """With the examples as its axis, none is known."""
    is_known = kind in {*map(type, PER_EXAMPLE), *ALSO_PER_EXAMPLE}
    axis = "axis" in inspect.signature(kind).parameters
    for loss, expected in [(kind(), is_known), *([(kind(axis=0), False)] if axis else [])]:
        model = compiled(loss)
        with contextlib.suppress(Exception):  # Keras builds the loss before it fails.
            model.compute_loss(y=tf.constant(Y), y_pred=tf.constant(Y))
        assert pure.has_own_loss(model) is not expected


ALSO_PER_EXAMPLE = (keras.losses.CTC, keras.losses.SparseCategoricalCrossentropy)
PER_EXAMPLE = [
    keras.losses.BinaryCrossentropy(),
    keras.losses.BinaryFocalCrossentropy(),
    keras.losses.CategoricalCrossentropy(),
    keras.losses.CategoricalFocalCrossentropy(),
    keras.losses.CategoricalHinge(),
    keras.losses.CosineSimilarity(),
    keras.losses.Hinge(),
    keras.losses.Huber(),
    keras.losses.KLDivergence(),
    keras.losses.LogCosh(),
    keras.losses.MeanAbsoluteError(),
    keras.losses.MeanAbsolutePercentageError(),
    keras.losses.MeanSquaredError(),
    keras.losses.MeanSquaredLogarithmicError(),
    keras.losses.Poisson(),
    keras.losses.SquaredHinge(),
    keras.losses.MeanSquaredError(reduction="sum"),
    keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
]


@pytest.mark.parametrize("loss", PER_EXAMPLE, ids=lambda loss: f"{loss.name} {loss.reduction}")
@pytest.mark.parametrize("weighted", [False, True])
def test_losses_of_each_example_pass_the_check(loss, weighted):
    weights = np.linspace(0, 1, 37).astype("float32")
    data = (X, Y, weights) if weighted else (X, Y)
    whole, cut = (clone(lambda: compiled(Wrapped(loss))) for _ in range(2))
    expected = fit(whole, data, devices=1, shards=1).history["loss"]
    assert fit(cut, data).history["loss"] == pytest.approx(expected, rel=1e-4)


def test_a_masked_sequence_passes_the_check():
    tokens = RANDOM.integers(0, 4, size=(37, 6))
    model = keras.Sequential([LAYERS.Embedding(4, 2, mask_zero=True), LAYERS.Dense(3)])
    model.compile("sgd", Wrapped(keras.losses.MeanSquaredError()))
    assert_trains(model, (tokens, RANDOM.normal(size=(37, 6, 3))))


class Sampling(LAYERS.Layer):
    def __init__(self):
        super().__init__()
        self.seeds = keras.random.SeedGenerator(0)

    def call(self, inputs):
        mean, log_variance = inputs
        noise = keras.random.normal(OPS.shape(mean), seed=self.seeds)
        divergence = 1 + log_variance - OPS.square(mean) - OPS.exp(log_variance)
        self.add_loss(-0.5 * OPS.mean(OPS.sum(divergence, axis=-1)))
        return mean + OPS.exp(0.5 * log_variance) * noise


def autoencoder():
    inputs = keras.Input((5,))
    hidden = LAYERS.Dropout(0.3)(LAYERS.Dense(4, activation="tanh")(inputs))
    hidden = LAYERS.BatchNormalization()(hidden)
    code = Sampling()([LAYERS.Dense(2)(hidden), LAYERS.Dense(2)(hidden)])
    outputs = LAYERS.Dense(5, kernel_regularizer="l2")(LAYERS.GaussianNoise(0.1)(code))
    model = keras.Model(inputs, outputs)
    model.compile("sgd", "mse")
    return model


def test_noise_and_dropout_and_batch_normalization_are_no_false_alarm():
    for scale in (0.01, 1, 100):
        assert_trains(autoencoder(), (scale * X, X))


class Noisy(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return OPS.mean(OPS.square(y - y_pred * tf.random.normal(tf.shape(y_pred))))


def test_there_is_no_verdict_where_chance_decides():
    assert_trains(compiled(None, kind=Noisy))


def test_a_loss_near_zero_by_cancellation_is_no_false_alarm():
    def margin(y_true, y_pred):
        return OPS.mean(y_true, axis=-1) + 0.0 * OPS.mean(y_pred, axis=-1)

    y = np.where(np.arange(37) % 2, 1.0, -1.0)[:, None].repeat(3, 1).astype("float32")
    assert_trains(compiled(margin), (X, 1000 * y))


def test_several_outputs_with_own_losses_pass():
    inputs = keras.Input((5,))
    model = keras.Model(inputs, [LAYERS.Dense(3)(inputs), LAYERS.Dense(3)(inputs)])
    model.compile("sgd", [Wrapped(keras.losses.MeanSquaredError()), "mae"])
    assert_trains(model, (X, (Y, Y)))


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_neither_hides_it_nor_looks_like_it(policy):
    keras.config.set_dtype_policy(policy)
    with pytest.raises(InexactLossError):
        fit(compiled(rmse), whole_batch_loss=False)
    for loss in (keras.losses.MeanSquaredError(), keras.losses.KLDivergence()):
        fit(compiled(Wrapped(loss)))


class AddedInTraining(LAYERS.Layer):
    def call(self, x, training=False):
        if training:
            self.add_loss(OPS.sum(OPS.abs(x)))
        return x


def test_a_loss_that_is_added_only_in_training_is_checked():
    model = keras.Sequential([LAYERS.Dense(3), AddedInTraining()])
    model.compile("sgd", "mse")
    with pytest.raises(InexactLossError):
        fit(model, whole_batch_loss=False)


def test_altered_rows_that_the_model_refuses_give_no_verdict():
    def sure(y_true, y_pred):
        tf.debugging.assert_near(tf.reduce_sum(y_true, -1), 1.0)
        return OPS.mean(OPS.square(y_true - y_pred), axis=-1)

    fit(compiled(sure), (X, Y / Y.sum(1, keepdims=True)))


class Contrastive(keras.Sequential):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        scores = y_pred @ OPS.transpose(y_pred)
        crossentropy = keras.losses.sparse_categorical_crossentropy
        return OPS.mean(crossentropy(OPS.arange(16), scores, from_logits=True))


def test_a_loss_for_one_size_of_batch_is_found():
    model = compiled(None, kind=Contrastive)
    told = r"loss of 'Contrastive'.*part of a batch.*Error: .*Expected.*`devices=1, shards=1`"
    with pytest.raises(InexactLossError, match=told):
        fit(model, (X[:32], Y[:32]), whole_batch_loss=False)
    whole, cut = (clone(lambda: compiled(None, kind=Contrastive)) for _ in range(2))
    expected = fit(whole, (X[:32], Y[:32]), devices=1, shards=1).history["loss"]
    assert fit(cut, (X[:32], Y[:32])).history["loss"] == pytest.approx(expected, rel=1e-5)
    # It cannot be computed at all. The error is Keras's own.
    with pytest.raises(ValueError, match=r"target.shape=\(16,\), output.shape=\(32, 32\)"):
        fit(compiled(None, kind=Contrastive), (X[:32], Y[:32]), batch_size=32)


class Bayesian(LAYERS.Layer):
    def __init__(self, units):
        super().__init__()
        self.units = units
        self.seeds = keras.random.SeedGenerator(1)

    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], self.units))

    def call(self, x):
        self.add_loss(1e-3 * OPS.mean(OPS.square(self.kernel)))
        return x @ (self.kernel + 0.3 * keras.random.normal(self.kernel.shape, seed=self.seeds))


@pytest.mark.parametrize("widths", [(32, 20), (20, 12), (12, 32), (31, 31)])
def test_noise_for_as_many_weights_as_examples_is_no_false_alarm(widths):
    layers = [LAYERS.Dense(widths[0]), Bayesian(widths[1]), Bayesian(8), LAYERS.Dense(3)]
    model = keras.Sequential([*layers, LAYERS.GaussianNoise(0.1)])
    model.compile("sgd", "mse")
    assert_trains(model, (X[:32], Y[:32]), batch_size=32)
