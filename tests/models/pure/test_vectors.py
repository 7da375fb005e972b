"""Small models train as one vector, and compute the same as with single variables."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.data.rows import Rows
from kerasdist.engine.engine import Engine
from kerasdist.models import pure

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(24, 6)).astype("float32")
Y = RANDOM.integers(0, 3, 24)


@pytest.fixture
def engines(monkeypatch):
    """The engines that the test makes."""
    made = []
    init = Engine.__init__

    def keep(self, *args):
        init(self, *args)
        made.append(self)

    monkeypatch.setattr(Engine, "__init__", keep)
    return made


class Unused(keras.layers.Layer):
    """Has a weight that no gradient reaches."""

    def build(self, shape):
        self.unused = self.add_weight(shape=(3,), initializer="ones", name="unused")

    def call(self, inputs):
        return inputs


def build(optimizer, *layers, constraint=None):
    keras.utils.set_random_seed(5)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, "relu", kernel_regularizer="l2", kernel_constraint=constraint),
            keras.layers.BatchNormalization(),
            *layers,
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    return model


def values(model):
    return [v.numpy() for v in (*model.variables, *model.optimizer.variables)]


def cosine():
    return keras.optimizers.schedules.CosineDecay(0.1, 20)


# These optimizers change each number of a weight by itself.
ALIKE = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True, weight_decay=0.01),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "amsgrad": lambda: keras.optimizers.Adam(cosine(), amsgrad=True, clipvalue=0.01),
    "adamw": lambda: keras.optimizers.AdamW(0.01, weight_decay=0.1),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, momentum=0.5, centered=True),
    "lion": lambda: keras.optimizers.Lion(0.01),
}


def excluding():
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    return optimizer


class Undescribed(keras.optimizers.schedules.LearningRateSchedule):
    """Without `get_config`."""

    def __call__(self, step):
        return 0.1 / (keras.ops.cast(step, "float32") + 1)


class OwnAdam(keras.optimizers.Adam):
    """May do anything."""


# These may treat the numbers of different variables differently, or cannot be made twice.
APART = {
    "clipnorm": lambda: keras.optimizers.Adam(0.01, clipnorm=0.1),
    "global_clipnorm": lambda: keras.optimizers.Adam(0.01, global_clipnorm=0.1),
    "excluding": excluding,
    "own": lambda: OwnAdam(0.01),
    "undescribed": lambda: keras.optimizers.SGD(Undescribed(), momentum=0.5),
    "function": lambda: keras.optimizers.SGD(lambda: 0.05),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
}


def assert_as_keras(model, plain):
    for ours, theirs in zip(values(model), values(plain), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("devices", [1, 2, 4])
@pytest.mark.parametrize("kind", ALIKE)
def test_joined_weights_train_as_each_by_itself(kind, devices, engines, monkeypatch):
    joined, apart = (build(ALIKE[kind]()) for _ in range(2))
    options = {"batch_size": 8, "epochs": 3, "seed": 0, "devices": devices, "progress": False}
    first = kerasdist.fit(joined, (X, Y), clip_norm=0.5, ema=0.9, **options)
    assert engines[0].vectors is not None
    monkeypatch.setattr(pure, "join", lambda *_: None)
    second = kerasdist.fit(apart, (X, Y), clip_norm=0.5, ema=0.9, **options)
    assert engines[1].vectors is None
    assert_as_keras(joined, apart)
    for one, two in zip(first.ema_weights, second.ema_weights, strict=True):
        np.testing.assert_allclose(one, two, rtol=2e-5, atol=2e-6)
    assert first.history.keys() == second.history.keys()


@pytest.mark.parametrize("kind", {**ALIKE, **APART})
def test_joined_or_not_it_is_what_keras_computes(kind, engines):
    model, plain = (build({**ALIKE, **APART}[kind]()) for _ in range(2))
    options = {"batch_size": 8, "epochs": 3, "shuffle": False}
    history = kerasdist.fit(model, (X, Y), **options, progress=False)
    assert (engines[0].vectors is not None) == (kind in ALIKE)
    expected = plain.fit(X, Y, **options, verbose=0)
    assert_as_keras(model, plain)
    for name, ours in history.history.items():
        np.testing.assert_allclose(ours, expected.history[name], rtol=1e-5, err_msg=name)


def test_a_weight_without_a_gradient_stays_and_the_others_train(engines):
    model, plain = (build(keras.optimizers.AdamW(0.01), Unused()) for _ in range(2))
    options = {"batch_size": 8, "epochs": 2, "shuffle": False}
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        kerasdist.fit(model, (X, Y), **options, progress=False)
    assert engines[0].vectors is not None
    with pytest.warns(UserWarning, match="Gradients do not exist"):
        plain.fit(X, Y, **options, verbose=0)
    assert_as_keras(model, plain)


def test_a_constraint_holds_for_its_own_variable(engines):
    model, plain = (build("adam", constraint=keras.constraints.UnitNorm()) for _ in range(2))
    options = {"batch_size": 8, "epochs": 2, "shuffle": False}
    kerasdist.fit(model, (X, Y), **options, progress=False)
    assert engines[0].vectors is None
    plain.fit(X, Y, **options, verbose=0)
    assert_as_keras(model, plain)


def test_not_joined_where_bits_or_types_forbid(engines):
    options = {"batch_size": 8, "progress": False}
    kerasdist.fit(build(keras.optimizers.Adam(0.01, use_ema=True)), (X, Y), **options)
    kerasdist.fit(build("adam"), (X, Y), deterministic=True, shards=2, **options)
    for dtype in ("float64", "bfloat16"):  # beside float32
        model = keras.Sequential([keras.layers.Dense(4, dtype=dtype), keras.layers.Dense(3)])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        kerasdist.fit(model, (X, Y), **options)
    assert [engine.vectors for engine in engines] == [None] * 4


def test_a_callback_sees_and_changes_the_model_itself(engines):
    class Halves(keras.callbacks.Callback):
        seen = ()

        def on_epoch_end(self, epoch, logs=None):
            self.seen += (self.model.get_weights(),)
            self.model.set_weights([w * 0 for w in self.model.get_weights()])
            self.model.optimizer.learning_rate = 0.0

    model, callback = build("sgd"), Halves()
    kerasdist.fit(model, (X, Y), batch_size=8, epochs=2, callbacks=[callback], progress=False)
    assert engines[0].vectors is not None
    start = build("sgd").get_weights()
    first, second = callback.seen
    assert not np.array_equal(first[0], start[0])
    for weights, variable in zip(second, model.weights, strict=True):
        if "moving" not in variable.path:
            assert not weights.any()


def test_callbacks_of_every_batch_are_given_the_variables_themselves(engines):
    class Watches(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            pass

    kerasdist.fit(build("adam"), (X, Y), batch_size=8, callbacks=[Watches()], progress=False)
    assert engines[0].vectors is None


def test_a_run_resumes_from_a_checkpoint_of_vectors(tmp_path, engines, monkeypatch):
    whole, part = (build("adam") for _ in range(2))
    options = {"batch_size": 8, "ema": 0.9, "seed": 0, "progress": False}
    kerasdist.fit(whole, (X, Y), epochs=4, run_dir=tmp_path / "whole", **options)
    kerasdist.fit(part, (X, Y), epochs=2, run_dir=tmp_path / "part", **options)
    again = build("adam")
    kerasdist.fit(again, (X, Y), epochs=4, run_dir=tmp_path / "part", **options)
    assert all(engine.vectors is not None for engine in engines)
    for one, two in zip(values(whole), values(again), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_step_that_is_not_finite_leaves_the_vectors_and_names_the_variables():
    model = build("adam")
    before = model.get_weights()
    large = X.copy()
    large[17] = 1e38
    with pytest.raises(kerasdist.KerasdistError, match=r"moving_variance on replica 1"):
        kerasdist.fit(model, (large, Y), batch_size=24, devices=2, shuffle=False, progress=False)
    for one, two in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("order", [None, [3, 0, 5, 1, 4, 2]])
def test_batches_of_one_known_size_have_the_same_rows(order):
    arrays = (tf.Variable(X[:6]), tf.Variable(Y[:6]))
    rows = Rows(arrays, None if order is None else tf.Variable(order), tf.constant(0, tf.int64), 2)
    for number in range(3):
        expected = rows.batch(tf.constant(number, tf.int64))
        found = rows._replace(of_one_size=True).batch(tf.constant(number, tf.int64))
        for one, two in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one, two)
