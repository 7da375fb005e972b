"""The traps of Keras under tf.distribute (docs/exactness.md), one test each."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.devices.placement import Placement, place
from kerasdist.engine.transfer import exchange
from kerasdist.runs.trained_model import weights_sha256
from kerasdist.training import engines as engines_module
from kerasdist.training.progress import watch


def linear(rate=1.0, units=1, optimizer=None, **compiled):
    """y = x @ w from zeros: one step of SGD with rate 1 moves w by minus its gradient."""
    model = keras.Sequential(
        [keras.layers.Dense(units, use_bias=False, kernel_initializer="zeros")]
    )
    model.compile(optimizer or keras.optimizers.SGD(rate), compiled.pop("loss", "mse"), **compiled)
    return model


def fit(model, data, **options):
    options = {"batch_size": len(tf.nest.flatten(data)[0]), "shuffle": False, "seed": 0} | options
    return kerasdist.fit(model, data, progress=False, **options)


def mse_gradient(x, y, w):
    return 2 * x.T @ (x @ w - y) / y.size


@pytest.fixture
def engines(monkeypatch):
    """The engines that fit makes, with a copy of the state on each device, as GPUs have it."""
    made = []
    monkeypatch.setattr(Placement, "shares_memory", False)

    class Recorded(engines_module.Engine):
        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)

        def close(self):
            """Its copies stay: tests look at them."""

    monkeypatch.setattr(engines_module, "Engine", Recorded)
    return made


def on_each_replica(engine, role, index=0):
    return [copy.numpy() for copy in engine.state._copies[role][index]]


DATA = np.random.default_rng(1)
X = DATA.normal(size=(8, 3)).astype("float32")
Y = DATA.normal(size=(8, 1)).astype("float32")


@pytest.mark.parametrize("replicas", [2, 4])
@pytest.mark.parametrize("where", ["optimizer", "fit"])
def test_t1_clipping_is_of_the_whole_batches_gradient(replicas, where):
    if where == "optimizer":
        model = linear(optimizer=keras.optimizers.SGD(1.0, global_clipnorm=0.1))
        fit(model, (X, Y), devices=replicas)
    else:
        model = linear()
        fit(model, (X, Y), devices=replicas, clip_norm=0.1)
    moved = -model.get_weights()[0]
    gradient = mse_gradient(X, Y, np.zeros((3, 1)))
    assert np.linalg.norm(gradient) > 0.1
    np.testing.assert_allclose(moved, 0.1 * gradient / np.linalg.norm(gradient), rtol=1e-5)


def test_t2_shards_accumulate_what_gradient_accumulation_cannot():
    accumulated, whole = linear(), linear()
    fit(accumulated, (X, Y), devices=2, shards=8)
    fit(whole, (X, Y), devices=1)
    np.testing.assert_allclose(
        accumulated.get_weights()[0], whole.get_weights()[0], rtol=1e-5, atol=1e-7
    )
    refused = linear(optimizer=keras.optimizers.SGD(1.0, gradient_accumulation_steps=2))
    with pytest.raises(kerasdist.KerasdistError, match=r"gradient_accumulation_steps=2.*shards"):
        fit(refused, (X, Y), devices=2)


@pytest.mark.parametrize("replicas", [1, 2])
def test_t3_the_average_of_the_weights_is_kept_beside_them(replicas):
    model = linear(rate=0.1)
    history = fit(model, (X, Y), devices=replicas, epochs=5, ema=0.5)
    w = average = np.zeros((3, 1))
    for step in range(5):
        w = w - 0.1 * mse_gradient(X, Y, w)
        decay = min(0.5, (2 + step) / (11 + step))
        average = decay * average + (1 - decay) * w
    np.testing.assert_allclose(model.get_weights()[0], w, rtol=1e-4)
    np.testing.assert_allclose(history.ema_weights[0], average, rtol=1e-4)
    refused = linear(optimizer=keras.optimizers.SGD(1.0, use_ema=True, ema_overwrite_frequency=2))
    with pytest.raises(kerasdist.KerasdistError, match=r"ema_overwrite_frequency=2.*ema=\.\.\."):
        fit(refused, (X, Y), devices=replicas)


def test_t4_many_steps_in_one_call_equal_single_steps(monkeypatch):
    def trained(seconds):
        monkeypatch.setattr(watch, "SECONDS_PER_CALL", seconds)
        calls = []
        original = engines_module.Engine.train

        def counted(self, iterator, num_steps):
            calls.append(num_steps)
            return original(self, iterator, num_steps)

        monkeypatch.setattr(engines_module.Engine, "train", counted)
        model = linear(rate=0.1)
        fit(model, (X, Y), devices=2, batch_size=2, epochs=6)
        monkeypatch.setattr(engines_module.Engine, "train", original)
        return model.get_weights()[0], calls

    single, single_calls = trained(0.0)
    many, many_calls = trained(10.0)
    assert max(single_calls) == 1
    assert max(many_calls) > 20
    np.testing.assert_array_equal(single, many)


@pytest.mark.parametrize(("num_examples", "replicas"), [(1, 2), (3, 4), (5, 4), (7, 3)])
def test_t5_an_uneven_batch_has_its_whole_gradient(num_examples, replicas):
    x, y = X[:num_examples], Y[:num_examples]
    model = linear()
    history = fit(model, (x, y), devices=replicas, batch_size=8)
    np.testing.assert_allclose(
        model.get_weights()[0], -mse_gradient(x, y, np.zeros((3, 1))), rtol=1e-5
    )
    np.testing.assert_allclose(history.history["loss"], [np.mean(y**2)], rtol=1e-5)


@pytest.mark.parametrize(("num_examples", "shards"), [(8, 2), (7, 2), (3, 4), (1, 4)])
def test_t6_batch_norm_statistics_are_the_shards_average_on_every_replica(
    engines, num_examples, shards
):
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.BatchNormalization(momentum=0.5), keras.layers.Dense(1)]
    )
    model.compile("sgd", "mse")
    x, y = 3 + X[:num_examples], Y[:num_examples]
    fit(model, (x, y), devices=2, shards=shards, batch_size=8)
    mean, variance = np.zeros(3), np.zeros(3)
    for i in range(shards):
        part = x[i * num_examples // shards : (i + 1) * num_examples // shards]
        if len(part):
            share = len(part) / num_examples
            mean += share * (0.5 * 0 + 0.5 * part.mean(axis=0))
            variance += share * (0.5 * 1 + 0.5 * part.var(axis=0))
    layer = model.layers[0]
    np.testing.assert_allclose(layer.moving_mean.numpy(), mean, rtol=1e-5)
    np.testing.assert_allclose(layer.moving_variance.numpy(), variance, rtol=1e-4)
    first, second = on_each_replica(engines[0], "other")
    np.testing.assert_array_equal(first, second)


def test_t7_infinity_on_one_replica_is_written_on_none(engines):
    """The second replica's half of the batch overflows float16; both leave the step out."""
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.ones((4, 1), "float32")
    y = np.array([[0.0], [0.0], [500.0], [500.0]], "float32")
    fit(model, (x, y), devices=2)
    np.testing.assert_array_equal(model.get_weights()[0], [[1.0]])
    (engine,) = engines
    for copy in on_each_replica(engine, "trainable"):
        np.testing.assert_array_equal(copy, [[1.0]])
    scale = engine.roles.optimizer.index(model.optimizer.dynamic_scale)
    assert set(on_each_replica(engine, "optimizer", scale)) == {2.0**14}
    assert int(model.optimizer.iterations) == 0


def test_t7_the_loss_scale_recovers_and_training_goes_on():
    keras.config.set_dtype_policy("mixed_float16")
    model = keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1), initial_scale=2.0**30, dynamic_growth_steps=1000
    )
    model.compile(optimizer, "mse")
    data = (np.ones((4, 1), "float32"), np.full((4, 1), 3.0, "float32"))
    fit(model, data, devices=2, steps=10)
    assert int(optimizer.iterations) == 10
    assert float(optimizer.dynamic_scale) < 2.0**30
    assert abs(model.get_weights()[0].item() - 3.0) < 0.5


class OwnLoss(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")

    def call(self, x):
        return self.dense(x)

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.square(y - y_pred))


@pytest.mark.parametrize("replicas", [1, 2, 4])
def test_t8_a_loss_of_ones_own_has_its_gradient_once(replicas):
    model = OwnLoss()
    model.compile(keras.optimizers.SGD(1.0))
    fit(model, (X, Y), devices=replicas)
    expected = -mse_gradient(X, Y, np.zeros((3, 1)))
    np.testing.assert_allclose(model.get_weights()[0], expected, rtol=1e-5)


def dropped(replicas, shards, seed=0, layer_seed=None):
    """The gradient of sum(dropout(w)) over 4 examples of 8 units, for three steps: the masks."""

    class Masks(keras.Model):
        def __init__(self):
            super().__init__()
            self.w = self.add_weight(shape=(12, 8), initializer="zeros", name="w")
            self.dropout = keras.layers.Dropout(0.5, seed=layer_seed)

        def call(self, x, training=False):
            return self.dropout(keras.ops.ones((1, 8)) * (1 + keras.ops.matmul(x, self.w)))

    model = Masks()
    model.compile(keras.optimizers.SGD(1.0), keras.losses.MeanAbsoluteError(reduction="sum"))
    # Row i of w belongs to example i alone: its gradient is that example's mask.
    fit(
        model,
        (np.eye(12, dtype="float32"), np.full((12, 8), 9.0, "float32")),
        batch_size=4,
        devices=replicas,
        shards=shards,
        seed=seed,
    )
    return model.get_weights()[0] != 0


def test_t9_dropout_differs_between_shards_and_steps_but_not_between_device_counts():
    one = dropped(1, 4)
    np.testing.assert_array_equal(one, dropped(2, 4))
    np.testing.assert_array_equal(one, dropped(4, 4))
    rows = {row.tobytes() for row in one}
    assert len(rows) > 8  # 3 steps x 4 shards: 256 possible masks each
    assert not np.array_equal(one, dropped(1, 4, seed=1))


def test_t9_random_functions_without_a_layer_are_covered_too():
    """keras.random with no seed uses Keras's global generator."""

    class Noise(keras.Model):
        def __init__(self):
            super().__init__()
            self.w = self.add_weight(shape=(4, 3), initializer="zeros", name="w")

        def call(self, x):
            noise = keras.random.uniform((1, 3), minval=1.0, maxval=2.0)
            return keras.ops.matmul(x, self.w) * noise

    def trained(replicas):
        model = Noise()
        model.compile(keras.optimizers.SGD(1.0), keras.losses.MeanAbsoluteError(reduction="sum"))
        data = (np.eye(4, dtype="float32"), np.full((4, 3), 99.0, "float32"))
        fit(model, data, devices=replicas, shards=4)
        return model.get_weights()[0]

    one = trained(1)
    np.testing.assert_array_equal(one, trained(2))
    assert len({row.tobytes() for row in one}) == 4


def test_t11_validation_on_the_average_leaves_the_weights_bits():
    def trained(**options):
        keras.utils.set_random_seed(3)
        model = keras.Sequential([keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        fit(model, (X, Y), devices=2, epochs=3, **options)
        return model.get_weights()

    plain = trained()
    with_average = trained(ema=0.9, validation_data=(X, Y))
    for a, b in zip(plain, with_average, strict=True):
        np.testing.assert_array_equal(a, b)


def averaging():
    return linear(optimizer=keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9))


def test_t16_use_ema_leaves_the_average_in_the_model_as_keras_does():
    model, expected = averaging(), averaging()
    for _ in range(2):  # The second fit starts from the average.
        fit(model, (X, Y), devices=2, epochs=2)
        expected.fit(X, Y, batch_size=len(X), epochs=2, verbose=0)
        np.testing.assert_allclose(model.get_weights()[0], expected.get_weights()[0], rtol=1e-4)


def test_t16_a_run_continues_from_the_weights_not_their_average(tmp_path):
    whole = averaging()
    fit(whole, (X, Y), devices=2, epochs=4)
    for num_epochs in (2, 4, 4):  # The third finds a run that is finished.
        parts = averaging()
        fit(parts, (X, Y), devices=2, epochs=num_epochs, run_dir=tmp_path / "run")
        final = keras.models.load_model(tmp_path / "run" / "final.keras")
        np.testing.assert_array_equal(final.get_weights()[0], parts.get_weights()[0])
    np.testing.assert_array_equal(parts.get_weights()[0], whole.get_weights()[0])
    w = np.zeros((3, 1))
    for _ in range(4):
        w = w - 0.1 * mse_gradient(X, Y, w)
    last = kerasdist.load(tmp_path / "run", which="last")
    np.testing.assert_allclose(last.get_weights()[0], w, rtol=1e-4)
    assert np.abs(last.get_weights()[0] - parts.get_weights()[0]).max() > 1e-3
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["weights_sha256"] == weights_sha256(last)


def test_t17_strategies_of_different_sizes_follow_one_another():
    results = []
    for replicas in (1, 2, 4, 3):
        model = linear()
        fit(model, (X, Y), devices=replicas)
        results.append(model.get_weights()[0])
    for result in results[1:]:
        np.testing.assert_allclose(results[0], result, rtol=1e-5)


@pytest.mark.parametrize("fixed_order", [False, True])
@pytest.mark.parametrize("replicas", [1, 2, 3, 4])
def test_t19_sums_over_replicas_are_right_for_every_number(replicas, fixed_order):
    placement = place(replicas)

    def replica():
        context = tf.distribute.get_replica_context()
        own = tf.cast(context.replica_id_in_sync_group, tf.float32) + 1
        (total,) = exchange.over_replicas(
            [tf.stack([own, 10 * own])], placement, fixed_order=fixed_order
        )
        return total

    if placement.strategy is None:
        totals = [replica()]
    else:
        results = tf.function(lambda: placement.strategy.run(replica))()
        totals = placement.strategy.experimental_local_results(results)
    expected = sum(range(1, replicas + 1))
    for total in totals:
        np.testing.assert_array_equal(total.numpy(), [expected, 10 * expected])
