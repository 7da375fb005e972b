"""The ways that small models on CPUs do not go: copies on each device, large states, iterators.

They must train to the bits of the way that they do go, which other tests compare with Keras.
"""

import functools

import keras
import numpy as np
import pytest

import kerasdist
from kerasdist.data.forms import arrays
from kerasdist.devices.placement import Placement
from kerasdist.engine import finite, state, terms

PATHS = {
    "mirrored": [(Placement, "shares_memory", False)],
    "large": [(module, "SMALL", 0) for module in (finite, state, terms)],
    "iterators": [(arrays, "MAX_BATCH_BYTES", 0)],
}


@pytest.fixture(params=PATHS)
def other_path(request, monkeypatch):
    """Takes the other path from when it is called."""

    def take():
        for owner, name, value in PATHS[request.param]:
            monkeypatch.setattr(owner, name, value)

    return take


@functools.cache
def usually(kind, devices):
    """What the usual path gives."""
    return train(kind, devices)


class Largest(keras.metrics.Metric):
    """Does not add up over shards: outputs are gathered for it."""

    def __init__(self):
        super().__init__(name="largest")
        self.value = self.add_weight(name="value", initializer="zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.value.assign(keras.ops.maximum(self.value, keras.ops.max(y_pred)))

    def result(self):
        return self.value


def build(metrics=("accuracy",), optimizer="adam"):
    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, activation="relu", kernel_regularizer="l2"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=list(metrics))
    return model


RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(23, 6)).astype("float32")
Y = RANDOM.integers(0, 3, 23)


class Shrink(keras.callbacks.Callback):
    """Changes weights and learning rate between steps."""

    def on_train_batch_end(self, batch, logs=None):
        self.model.layers[-1].kernel.assign(self.model.layers[-1].kernel * 0.5)
        self.model.optimizer.learning_rate = 0.01 / (batch + 1)


def scaled():
    inner = keras.optimizers.SGD(0.1)
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**127)


# What is trained: arguments of `build`, and of `fit`.
KINDS = {
    "plain": lambda: ({}, {"ema": 0.9, "clip_norm": 0.5}),
    "gathered": lambda: ({"metrics": [Largest()]}, {}),
    "scaled": lambda: ({"optimizer": scaled()}, {"epochs": 30, "on_nan": "skip"}),
    "changed": lambda: ({}, {"callbacks": [Shrink()]}),
}


def train(kind, devices, **changed):
    """Bytes of weights, averages and optimizer, and the logs, after some uneven batches."""
    compiled, options = KINDS[kind]()
    model = build(**compiled)
    defaults = {
        "epochs": 2,
        "batch_size": 5,  # and a batch of 3 for 4 shards: one of them is empty
        "shards": 4,
        "deterministic": True,
        "validation_data": (X[:7], Y[:7]),
        "progress": False,
    }
    settings = {**defaults, **options, **changed}
    history = kerasdist.fit(model, (X, Y), devices=devices, **settings)
    arrays = [*model.get_weights(), *(history.ema_weights or [])]
    arrays += [variable.numpy() for variable in model.optimizer.variables]
    return [array.tobytes() for array in arrays], history.history


@pytest.mark.parametrize("kind", KINDS)
def test_two_devices_have_the_same_bits_and_logs(kind, other_path):
    usual = usually(kind, 2)
    other_path()
    assert train(kind, 2) == usual


@pytest.mark.parametrize("devices", [1, 4])
def test_other_numbers_of_devices_have_the_same_bits_and_logs(devices, other_path):
    other_path()
    assert train("plain", devices) == usually("plain", 2)


def test_the_kinds_are_what_they_say():
    assert usually("gathered", 2)[1]["largest"][-1] > 0
    assert usually("changed", 2) != usually("plain", 2)
    scales = np.frombuffer(b"".join(usually("scaled", 2)[0][-20:]), "float32")
    assert not (scales == 2.0**127).any()


def test_a_nan_is_named_and_nothing_is_written(other_path):
    other_path()
    model = build()
    model.layers[0].kernel.assign(np.full((6, 8), 1e38))
    before = model.get_weights()
    with pytest.raises(kerasdist.KerasdistError, match="not finite"):
        kerasdist.fit(model, (X * 1e6, Y), devices=2, batch_size=8, progress=False)
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


@keras.saving.register_keras_serializable("tests")
class Counts(keras.layers.Layer):
    """Counts its calls in a whole number."""

    def build(self, input_shape):
        self.calls = self.add_weight(
            name="calls", dtype="int32", initializer="zeros", trainable=False
        )

    def call(self, inputs):
        self.calls.assign(self.calls + 1)
        return inputs


@pytest.mark.parametrize("small", [0, 2**16])
def test_a_whole_number_counts_steps_whose_first_shard_is_empty(small, monkeypatch):
    for module in (finite, state, terms):
        monkeypatch.setattr(module, "SMALL", small)
    model = keras.Sequential([keras.Input((6,)), Counts(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = (X[:7], Y[:7].astype("float32"))  # The last batch has 3 examples for 4 shards.
    kerasdist.fit(model, data, batch_size=4, shards=4, devices=2, epochs=1, progress=False)
    assert int(model.layers[0].calls) == 2
