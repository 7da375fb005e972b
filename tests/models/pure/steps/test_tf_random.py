"""`tf.random` inside a step: TensorFlow's distributions, from a seed instead of a state."""

import inspect
import threading

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.errors import KerasdistError
from kerasdist.models.pure.steps import tf_random
from kerasdist.models.traces import operations_with_random_state
from tests.device_counts import those_here

MANY = 20_000
SEED = tf.constant([3, 4], tf.int64)


def drawn(draw, seed=SEED):
    with tf_random.drawing(seed):
        return draw().numpy()


# `(draw, mean, standard deviation)` by the formulas of each distribution.
DISTRIBUTIONS = {
    "normal": (lambda: tf.random.normal([MANY], 2.0, 3.0), 2.0, 3.0),
    "normal float64": (lambda: tf.random.normal([MANY], dtype=tf.float64), 0.0, 1.0),
    "truncated": (lambda: tf.random.truncated_normal([MANY], stddev=2.0), 0.0, 2 * 0.8796),
    "uniform": (lambda: tf.random.uniform([MANY], -1.0, 3.0), 1.0, 4 / 12**0.5),
    "uniform of [0, 1)": (lambda: tf.random.uniform((MANY,)), 0.5, 1 / 12**0.5),
    "integers": (lambda: tf.random.uniform([MANY], 2, 6, tf.int32), 3.5, 1.25**0.5),
    "gamma": (lambda: tf.random.gamma([MANY], 4.0, 2.0), 2.0, 1.0),
    "gamma without beta": (lambda: tf.random.gamma([MANY], alpha=9.0), 9.0, 3.0),
    "poisson": (lambda: tf.random.poisson([MANY], 4.0), 4.0, 2.0),
    "categorical": (
        lambda: tf.random.categorical(tf.math.log([[0.25, 0.75]]), MANY)[0],
        0.75,
        0.1875**0.5,
    ),
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_numbers_have_their_distribution_and_type(name):
    draw, mean, deviation = DISTRIBUTIONS[name]
    values = drawn(draw)
    plain = draw().numpy()
    assert values.dtype == plain.dtype
    assert values.shape == plain.shape
    assert values.mean() == pytest.approx(mean, abs=5 * deviation / MANY**0.5)
    assert values.std() == pytest.approx(deviation, rel=0.03)
    tail = np.sort(plain)[[MANY // 20, -MANY // 20]]
    np.testing.assert_allclose(np.sort(values)[[MANY // 20, -MANY // 20]], tail, atol=0.15)


@pytest.mark.parametrize("name", tf_random._STATELESS)
def test_arguments_are_those_of_tensorflow(name):
    own = inspect.signature(tf_random._STATELESS[name])
    (_, *rest) = own.parameters.values()
    expected = inspect.signature(getattr(tf.random, name)).parameters.values()
    assert [(p.name, p.default) for p in rest] == [(p.name, p.default) for p in expected]


def test_parameters_of_gamma_and_poisson_are_broadcast():
    rates = tf.constant([1.0, 100.0])
    shape = (50, 2)
    for draw in (lambda: tf.random.gamma([50], rates), lambda: tf.random.poisson([50], rates)):
        values = drawn(draw)
        assert values.shape == draw().shape == shape
        np.testing.assert_allclose(values.mean(0), rates, rtol=0.5)
    parts = drawn(lambda: tf.random.gamma([3], tf.ones((4, 1)), tf.ones(2)))
    assert parts.shape == tf.random.gamma([3], tf.ones((4, 1)), tf.ones(2)).shape == (3, 4, 2)


def test_a_shuffle_keeps_each_row_once():
    rows = np.arange(60).reshape(20, 3)
    found = drawn(lambda: tf.random.shuffle(rows))
    assert not (found == rows).all()
    np.testing.assert_array_equal(np.sort(found, axis=0), rows)
    with tf_random.drawing(SEED) as drawing:
        tf.random.normal([2])
        assert not drawing.has_shuffled
        tf.random.shuffle(rows)
        assert drawing.has_shuffled


def test_integers_without_an_end_are_refused_as_in_tensorflow():
    def draw():
        return tf.random.uniform([2], dtype=tf.int32)

    for run in (draw, lambda: drawn(draw)):
        with pytest.raises(ValueError, match="Must specify maxval"):
            run()


def test_numbers_depend_on_the_seed_and_the_place_alone():
    def three():
        return tf.stack([tf.random.normal([4]) for _ in range(3)])

    first = drawn(three)
    tf.random.normal([9])  # What is drawn elsewhere changes nothing.
    np.testing.assert_array_equal(drawn(three), first)
    assert len(np.unique(first)) == 12  # Other numbers with each call.
    for other in ([3, 5000], [2, 4]):
        assert not np.isin(drawn(three, tf.constant(other)), first).any()
    # The seed of an operation does not fix its numbers, as in TensorFlow.
    two = drawn(lambda: tf.stack([tf.random.normal([4], seed=1) for _ in range(2)]))
    assert not (two[0] == two[1]).any()


def test_a_compiled_function_takes_the_seed_as_an_input():
    @tf.function
    def compiled(seed):
        with tf_random.drawing(seed):
            return tf.random.uniform([4])

    np.testing.assert_array_equal(compiled(SEED), drawn(lambda: tf.random.uniform([4])))
    assert not (compiled(SEED + 7) == compiled(SEED)).numpy().any()


def test_a_loop_draws_other_numbers_each_time():
    """Its body is traced once: a seed would be the same in each iteration."""
    images = tf.tile(tf.reshape(tf.range(6.0), (1, 2, 3, 1)), (64, 1, 1, 1))

    @tf.function
    def compiled(seed):
        with tf_random.drawing(seed):
            flipped = tf.map_fn(tf.image.random_flip_left_right, images)
            body = lambda i, found: (i + 1, found.write(i, tf.random.normal([])))  # noqa: E731
            empty = tf.TensorArray(tf.float32, 5)
            _, noise = tf.while_loop(lambda i, _: i < 5, body, (0, empty))
            return flipped, noise.stack()

    flipped, noise = compiled(SEED)
    is_flipped = (flipped != images).numpy().any(axis=(1, 2, 3))
    assert 10 < is_flipped.sum() < 54
    assert len(np.unique(noise)) == 5
    found = operations_with_random_state(compiled.get_concrete_function(SEED).graph)
    assert len(found) >= 2


def test_rows_are_alike_where_that_is_asked_for():
    with tf_random.drawing(SEED, lambda shape: int(shape[0]) == 4):
        for draw in (tf.random.normal, tf.random.uniform, tf.random.truncated_normal):
            rows = draw([4, 3]).numpy()
            assert (rows == rows[0]).all()
            assert len(np.unique(rows)) == 3
            assert len(np.unique(draw([5, 3]))) == 15


def test_tensorflows_own_functions_draw_from_the_seed():
    images = tf.reshape(tf.range(64 * 2 * 3, dtype=tf.float32), (64, 2, 3, 1))

    def flipped():
        return tf.map_fn(tf.image.random_flip_left_right, images)

    def each():
        return tf.image.random_flip_left_right(images)

    for draw in (each, lambda: tf.image.random_brightness(images, 9.0), flipped):
        first = drawn(draw)
        np.testing.assert_array_equal(drawn(draw), first)
        assert not (first == drawn(draw, tf.constant([8, 9]))).all()
    found = drawn(each)
    is_flipped = (found != images).numpy().any(axis=(1, 2, 3))
    assert 10 < is_flipped.sum() < 54
    for image, one, other in zip(images.numpy(), found, is_flipped, strict=True):
        np.testing.assert_array_equal(one, image[:, ::-1] if other else image)
    kept = drawn(lambda: tf.nn.dropout(tf.ones([100]), 0.5))
    np.testing.assert_array_equal(kept, drawn(lambda: tf.nn.dropout(tf.ones([100]), 0.5)))


def test_other_threads_and_the_time_after_draw_as_before():
    originals = {name: getattr(tf.random, name) for name in tf_random._STATELESS}
    seen = []

    def elsewhere():
        tf.random.set_seed(1)
        seen.append(tf.random.normal([3]).numpy())

    tf.random.set_seed(1)
    expected = tf.random.normal([3]).numpy()
    with tf_random.drawing(SEED):
        thread = threading.Thread(target=elsewhere)
        thread.start()
        thread.join()
    np.testing.assert_array_equal(seen[0], expected)
    assert {name: getattr(tf.random, name) for name in originals} == originals


class WithState(keras.Model):
    """Draws from a generator of TensorFlow's, which keeps a state."""

    def __init__(self):
        super().__init__()
        self.layer = keras.layers.Dense(1)
        self.generator = tf.random.Generator.from_seed(1)

    def call(self, x):
        return self.layer(x)

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            noise = self.generator.normal(tf.shape(x), dtype=x.dtype)
            loss = tf.reduce_mean((self.layer(x + noise) - y) ** 2)
        weights = self.layer.trainable_variables
        self.optimizer.apply(tape.gradient(loss, weights), weights)
        return {"loss": loss}


def test_a_step_with_a_random_state_runs_whole_and_is_never_deterministic(capsys):
    (devices,) = those_here(2)
    x, y = np.ones((9, 3), "float32"), np.ones((9, 1), "float32")

    def made():
        keras.utils.set_random_seed(1)
        model = WithState()
        model.compile("sgd")
        model.layer.build((None, 3))
        return model

    expected, model = made(), made()
    options = {"batch_size": 4, "shuffle": False}
    expected.fit(x, y, verbose=0, **options)
    kerasdist.fit(model, x, y, devices=devices, **options)
    assert "trains on one device" in capsys.readouterr().out
    for one, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    with pytest.raises(KerasdistError, match=r"draws random numbers with `tf.random`"):
        kerasdist.fit(made(), x, y, devices=devices, deterministic=True, **options)
