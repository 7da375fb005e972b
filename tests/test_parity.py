"""N replicas compute what one device computes: drawn models against plain references."""

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import kerasdist
from tests.device_counts import at_most

LAYERS = keras.layers


@dataclasses.dataclass(frozen=True)
class Case:
    """One drawn training: model, loss, data and how it is spread."""

    kind: str
    loss: str
    optimizer: str
    regularised: bool
    weighted: bool
    two_outputs: bool
    batch_norm: bool
    dropout: bool
    num_examples: int
    batch_size: int
    replicas: int
    shards: int
    seed: int

    @property
    def is_plain(self):
        return not (self.batch_norm or self.dropout)


@st.composite
def cases(draw):
    replicas = draw(st.integers(1, at_most(4)))
    per_replica = draw(st.sampled_from([1, 1, 1, 2, 3]))
    shards = replicas * per_replica
    batch_size = draw(st.integers(shards, shards + 5))
    kind = draw(st.sampled_from(["dense", "conv", "recurrent"]))
    losses = ["mean", "sum", "mean_with_sample_weight", "own", "super_and_own", "function"]
    return Case(
        kind=kind,
        loss=draw(st.sampled_from(losses)),
        optimizer=draw(st.sampled_from(["sgd", "adam"])),
        regularised=draw(st.booleans()),
        weighted=draw(st.booleans()),
        two_outputs=kind == "dense" and draw(st.booleans()),
        batch_norm=kind != "recurrent" and draw(st.booleans()),
        dropout=draw(st.booleans()),
        # Full batches only, which the step knows the size of, in half of them.
        num_examples=draw(st.integers(1, 3 * batch_size))
        if draw(st.booleans())
        else batch_size * draw(st.integers(1, 3)),
        batch_size=batch_size,
        replicas=replicas,
        shards=shards,
        seed=draw(st.integers(0, 5)),
    )


class OwnLoss(keras.Model):
    """A loss of its own, with the regularisers."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        per_example = keras.ops.mean(keras.ops.abs(y - y_pred) ** 3, axis=-1)
        while len(per_example.shape) > 1:
            per_example = keras.ops.mean(per_example, axis=-1)
        if sample_weight is not None:
            while len(sample_weight.shape) > 1:
                sample_weight = keras.ops.mean(sample_weight, axis=-1)
            per_example = per_example * sample_weight
        return keras.ops.mean(per_example) + sum(self.losses, 0.0)


class SuperAndOwnLoss(keras.Model):
    """Keras's loss plus a term of its own."""

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        loss = super().compute_loss(x, y, y_pred, sample_weight, training)
        return loss + 0.1 * keras.ops.mean(keras.ops.square(y_pred))


def cubic(y_true, y_pred):
    return keras.ops.mean(keras.ops.abs(y_true - y_pred) ** 3, axis=-1)


def build(case):
    """The model of a case, the same one every time."""
    keras.utils.set_random_seed(case.seed)
    l2 = keras.regularizers.L2(0.01) if case.regularised else None
    if case.kind == "dense":
        inputs = keras.Input((4,))
        hidden = LAYERS.Dense(5, activation="tanh", kernel_regularizer=l2)(inputs)
    elif case.kind == "conv":
        inputs = keras.Input((5, 5, 2))
        hidden = LAYERS.Conv2D(3, 3, activation="tanh", kernel_regularizer=l2)(inputs)
    else:
        inputs = keras.Input((6,), dtype="int32")
        hidden = LAYERS.Embedding(9, 4, mask_zero=True)(inputs)
        hidden = LAYERS.GRU(3, return_sequences=True, kernel_regularizer=l2)(hidden)
    if case.batch_norm:
        hidden = LAYERS.BatchNormalization()(hidden)
    if case.dropout:
        hidden = LAYERS.Dropout(0.4)(hidden)
    if case.kind == "conv":
        hidden = LAYERS.Flatten()(hidden)
    outputs = LAYERS.Dense(2)(hidden)
    # Two outputs go to Keras's losses only: the others here are written for one.
    two = case.two_outputs and case.loss in ("mean", "sum", "mean_with_sample_weight", "function")
    if two:
        outputs = [outputs, LAYERS.Dense(1)(hidden)]
    kind = {"own": OwnLoss, "super_and_own": SuperAndOwnLoss}.get(case.loss, keras.Model)
    model = kind(inputs, outputs)
    if case.loss in ("sum", "mean_with_sample_weight"):
        loss = keras.losses.MeanSquaredError(reduction=case.loss)
        losses = [loss, keras.losses.MeanAbsoluteError()] if two else loss
    elif case.loss == "function":
        losses = [cubic, "mse"] if two else cubic
    else:
        losses = ["mse", "mae"] if two else "mse"
    optimizer = (
        keras.optimizers.SGD(0.05) if case.optimizer == "sgd" else keras.optimizers.Adam(0.01)
    )
    model.compile(optimizer, losses)
    return model, two


def make_data(case, two):
    random = np.random.default_rng(case.seed)
    n = case.num_examples
    floatx = keras.config.floatx()
    if case.kind == "dense":
        x, shape = random.normal(size=(n, 4)).astype(floatx), (n, 2)
    elif case.kind == "conv":
        x, shape = random.normal(size=(n, 5, 5, 2)).astype(floatx), (n, 2)
    else:
        x, shape = random.integers(1, 9, size=(n, 6)), (n, 6, 2)
        for row, length in enumerate(random.integers(1, 7, size=n)):
            x[row, length:] = 0  # padding, which the mask leaves out of the loss
    y = random.normal(size=shape).astype(floatx)
    if two:
        y = (y, random.normal(size=(n, 1)).astype(floatx))
    if not case.weighted:
        return x, y
    # Keras wants a weight for each time step where there is a mask.
    size = (n, 6) if case.kind == "recurrent" else (n,)
    return x, y, random.uniform(0.1, 2.0, size=size).astype(floatx)


def batches(data, batch_size):
    flat = tf.nest.flatten(data)
    for start in range(0, len(flat[0]), batch_size):
        rows = slice(start, start + batch_size)
        yield tf.nest.map_structure(lambda a, rows=rows: a[rows], data)


def plain_loop(model, data, batch_size, epochs):
    """Keras's own loss on the whole global batch, a GradientTape, and `apply`: one device."""
    losses = []
    for _ in range(epochs):
        for x, y, *weight in batches(data, batch_size):
            with tf.GradientTape() as tape:
                outputs = model(x, training=True)
                loss = model.compute_loss(x, y, outputs, weight[0] if weight else None)
            gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
            # Whole gradients: Keras's optimizers square an embedding row's parts one by one when
            # it occurs twice in a batch (3.15.1), which is not the square of its gradient.
            gradients = [tf.convert_to_tensor(g) for g in gradients]
            model.optimizer.apply(gradients, model.trainable_variables)
            losses.append(float(loss))
    return losses


def largest_difference(first, second):
    """Relative to the largest weight of each array."""
    return max(
        float(np.max(np.abs(a - b)) / max(np.max(np.abs(a)), 1e-6))
        for a, b in zip(first.get_weights(), second.get_weights(), strict=True)
    )


def check_case(case, tolerance):
    ours, two = build(case)
    data = make_data(case, two)
    spread = {"batch_size": case.batch_size, "epochs": 2, "shuffle": False, "progress": False}
    kerasdist.fit(ours, data, devices=case.replicas, shards=case.shards, **spread)
    reference, _ = build(case)
    if case.is_plain:
        plain_loop(reference, data, case.batch_size, epochs=2)
    else:
        kerasdist.fit(reference, data, devices=1, shards=case.shards, **spread)
    assert largest_difference(reference, ours) < tolerance


def use_float64():
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


QUICK = settings(
    max_examples=7,
    phases=[Phase.explicit, Phase.generate],  # a failing case is small already
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)


@QUICK
@given(case=cases())
def test_any_model_on_any_number_of_replicas_equals_one_device(case):
    use_float64()
    check_case(case, 1e-9)


@pytest.mark.slow
@settings(QUICK, max_examples=150)
@given(case=cases())
def test_many_more_models_equal_one_device(case):
    use_float64()
    check_case(case, 1e-9)


@settings(QUICK, max_examples=6)
@given(case=cases())
def test_one_float32_steps_gradient_equals_the_whole_batches(case):
    """With SGD of rate 1, the change of the weights is the gradient."""
    case = dataclasses.replace(
        case,
        optimizer="sgd",
        batch_norm=False,
        dropout=False,
        num_examples=min(case.num_examples, case.batch_size),
    )
    ours, two = build(case)
    ours.optimizer.learning_rate = 1.0
    data = make_data(case, two)
    with tf.GradientTape() as tape:
        x, y, *weight = data
        outputs = ours(x, training=True)
        loss = ours.compute_loss(x, y, outputs, weight[0] if weight else None)
    expected = tape.gradient(loss, [v.value for v in ours.trainable_variables])
    expected = [tf.convert_to_tensor(g).numpy() for g in expected]
    before = [v.numpy() for v in ours.trainable_variables]
    kerasdist.fit(
        ours,
        data,
        batch_size=case.batch_size,
        shuffle=False,
        devices=case.replicas,
        shards=case.shards,
        progress=False,
    )
    norm = np.sqrt(sum(np.sum(g**2) for g in expected))
    for gradient, old, variable in zip(expected, before, ours.trainable_variables, strict=True):
        # 1e-6: what old - new itself rounds.
        gap = np.max(np.abs((old - variable.numpy()) - gradient))
        assert gap <= 1e-5 * norm + 1e-6 * np.max(np.abs(old))
