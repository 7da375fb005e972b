"""The quicker gradients on CPUs: TensorFlow's own maths, in every use of a convolution or pool."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.pure import kernels, patches


def gradients(function, *arrays):
    """A convolution's outputs and its gradients by input and kernel, in a compiled function."""

    @tf.function
    def compute(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            outputs = function(*tensors)
            loss = tf.reduce_sum(tf.sin(outputs))
        return outputs, *tape.gradient(loss, tensors)

    return [t.numpy() for t in compute(*map(tf.constant, arrays))]


def arrays(inputs, kernel, dtype="float64"):
    random = np.random.default_rng(0)
    return random.normal(size=inputs).astype(dtype), random.normal(size=kernel).astype(dtype)


@pytest.mark.parametrize(
    ("inputs", "kernel"),
    [
        ((3, 7, 5, 8), (3, 3, 8, 4)),
        ((2, 4, 9, 16), (5, 3, 16, 9)),
        ((1, 1, 2, 8), (7, 7, 8, 8)),
        ((2, 6, 6, 9), (1, 3, 9, 1)),
    ],
)
def test_gradients_are_tensorflows(inputs, kernel):
    values = arrays(inputs, kernel)
    assert kernels._has_quick_mirror(*map(tf.constant, values))
    ours = gradients(lambda x, w: kernels.convolution(x, w, 1, "SAME"), *values)
    theirs = gradients(lambda x, w: tf.nn.convolution(x, w, 1, "SAME"), *values)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


def count_operations(function, *values):
    """How often each operation occurs in a compiled gradient, functions in it included."""

    @tf.function
    def compute(*tensors):
        with tf.GradientTape() as tape:
            tape.watch(tensors)
            loss = tf.reduce_sum(function(*tensors))
        return tape.gradient(loss, tensors)

    graph = compute.get_concrete_function(*map(tf.constant, values)).graph.as_graph_def()
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    return [node.op for node in nodes]


@pytest.mark.parametrize(
    ("inputs", "kernel", "options"),
    [
        ((2, 6, 6, 8), (3, 3, 8, 4), {"strides": 2, "padding": "SAME"}),
        ((2, 6, 6, 8), (3, 3, 8, 4), {"strides": [1, 2], "padding": "SAME"}),
        ((2, 6, 6, 8), (3, 3, 8, 4), {"dilations": 2, "padding": "SAME"}),
        ((2, 6, 6, 8), (3, 3, 8, 4), {"padding": "VALID"}),
        ((2, 6, 6, 8), (2, 2, 8, 4), {"padding": "SAME"}),
        ((2, 6, 6, 8), (1, 1, 8, 4), {"padding": "SAME"}),
        ((2, 6, 6, 3), (3, 3, 3, 4), {"padding": "SAME"}),
        ((2, 6, 8), (3, 8, 4), {"padding": "SAME"}),
        ((2, 4, 4, 4, 8), (3, 3, 3, 8, 4), {"padding": "SAME"}),
    ],
)
def test_other_convolutions_are_left_to_tensorflow(inputs, kernel, options):
    values = arrays(inputs, kernel, "float32")
    ours = count_operations(lambda x, w: kernels.convolution(x, w, **options), *values)
    theirs = count_operations(lambda x, w: tf.nn.convolution(x, w, **options), *values)
    assert ours == theirs


def test_half_precision_is_left_to_tensorflow():
    values = arrays((2, 6, 6, 8), (3, 3, 8, 4), "float16")
    operations = count_operations(lambda x, w: kernels.convolution(x, w, 1, "SAME"), *values)
    assert "Conv2DBackpropInput" in operations


def test_second_derivatives_are_tensorflows():
    def penalty(convolve):
        def loss(x, w):
            with tf.GradientTape() as tape:
                tape.watch(x)
                outputs = tf.reduce_sum(tf.sin(convolve(x, w, 1, "SAME")))
            return tape.gradient(outputs, x) ** 2

        return loss

    values = arrays((2, 5, 5, 8), (3, 3, 8, 4))
    ours = gradients(penalty(kernels.convolution), *values)
    for a, b in zip(ours, gradients(penalty(tf.nn.convolution), *values), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-11)


def convolutions():
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(8, 3, padding="same", activation="relu"),
            keras.layers.Conv2D(8, 3, padding="same", activation="relu"),
            keras.layers.SeparableConv2D(8, 3, padding="same"),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(4),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    return model


def images():
    random = np.random.default_rng(1)
    return random.normal(size=(32, 8, 8, 3)).astype("float32"), random.integers(0, 4, 32)


@pytest.mark.parametrize("shards", [1, 4])
def test_a_fit_uses_them_and_equals_keras(shards, monkeypatch):
    used = []
    quick = kernels.convolution
    monkeypatch.setattr(kernels, "convolution", lambda *a, **k: used.append(a) or quick(*a, **k))
    data = images()
    ours, theirs = convolutions(), convolutions()
    kerasdist.fit(ours, data, epochs=3, batch_size=16, shuffle=False, shards=shards, devices=1)
    assert used
    theirs.fit(*data, epochs=3, batch_size=16, shuffle=False, verbose=0)
    for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)
    assert tf.nn.convolution is not patches._convolution


@pytest.fixture
def any_size(monkeypatch):
    monkeypatch.setattr(kernels, "MIN_POOLED", 1)


POOLS = [
    ((3, 7, 5, 4), (3, 2, "SAME")),
    ((2, 8, 6, 3), (2, 2, "VALID")),
    ((2, 9, 7, 3), ((3, 2), (1, 3), "SAME")),
    ((2, 9, 7, 3), ([1, 3, 2, 1], [1, 2, 3, 1], "VALID")),
    ((1, 5, 5, 2), (5, 1, "VALID")),
    ((2, 3, 3, 2), (4, 4, "SAME")),
    ((2, 6, 6, 1), (1, 2, "VALID")),
    ((0, 6, 6, 2), (2, 2, "VALID")),
]


@pytest.mark.parametrize(("shape", "options"), POOLS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("values", ["normal", "many alike", "infinite"])
def test_gradients_of_max_pooling_are_tensorflows_to_the_bit(
    shape, options, dtype, values, any_size
):
    inputs = np.random.default_rng(0).normal(size=shape).astype(dtype)
    if values == "many alike":
        inputs = np.maximum(np.round(inputs), 0)
    elif values == "infinite":
        inputs[..., 0] = -np.inf

    def finite(outputs):
        return tf.sin(tf.maximum(outputs, -9)) + tf.where(outputs < -9, 0 * outputs[:1], outputs)

    assert kernels._has_quick_search(tf.constant(inputs))
    ours = gradients(lambda x: finite(kernels.max_pool(x, *options)), inputs)
    theirs = gradients(lambda x: finite(tf.nn.max_pool(x, *options)), inputs)
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_array_equal(a, b)


def test_second_derivatives_of_max_pooling_are_tensorflows(any_size):
    def penalty(pool):
        def loss(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                outputs = tf.reduce_sum(tf.sin(pool(x, 3, 2, "SAME")))
            return tape.gradient(outputs, x) ** 2

        return loss

    inputs = np.random.default_rng(0).normal(size=(2, 7, 7, 3))
    ours = gradients(penalty(kernels.max_pool), inputs)
    for a, b in zip(ours, gradients(penalty(tf.nn.max_pool), inputs), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((2, 8, 8, 4), {"ksize": 2, "strides": 2, "padding": [[0, 0], [1, 1], [1, 1], [0, 0]]}),
        ((2, 4, 4, 4, 4), {"ksize": 2, "strides": 2, "padding": "VALID"}),
        ((2, 64, 4), {"ksize": 2, "strides": 2, "padding": "VALID"}),
    ],
)
def test_other_pools_are_left_to_tensorflow(shape, options, any_size):
    values = np.zeros(shape, "float32")
    ours = count_operations(lambda x: kernels.max_pool(x, **options), values)
    assert ours == count_operations(lambda x: tf.nn.max_pool(x, **options), values)


def test_small_pools_and_those_that_xla_compiles_are_left_to_tensorflow(monkeypatch):
    values = np.zeros((2, 8, 8, 4), "float32")

    def pool(x):
        return kernels.max_pool(x, 2, 2, "VALID")

    assert "MaxPoolGrad" in count_operations(pool, values)
    monkeypatch.setattr(kernels, "MIN_POOLED", 1)
    assert "MaxPoolGradWithArgmax" in count_operations(pool, values)
    compiled = tf.function(pool, jit_compile=True)
    assert "MaxPoolGrad" in count_operations(compiled, values)
    gradients(compiled, values)


def pooled():
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.MaxPooling2D(3, 2, padding="same"),
            keras.layers.Flatten(),
            keras.layers.Dense(4),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    return model


@pytest.mark.parametrize("jit", [False, True])
@pytest.mark.parametrize("devices", [1, 2])
def test_a_fit_pools_with_them_and_equals_keras(devices, jit, any_size, monkeypatch):
    used = []
    quick = kernels._positions_of_largest
    monkeypatch.setattr(
        kernels, "_positions_of_largest", lambda *args: used.append(args) or quick(*args)
    )
    ours, theirs, data = pooled(), pooled(), images()
    # The last batch is a part of one.
    options = {"epochs": 2, "batch_size": 12, "shuffle": False}
    kerasdist.fit(ours, data, **options, devices=devices, jit=jit)
    assert bool(used) != jit
    theirs.fit(*data, **options, verbose=0)
    for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_repeated_fits_share_their_functions():
    def fit():
        kerasdist.fit(convolutions(), images(), epochs=1, batch_size=16, devices=1)
        return kernels._convolution.experimental_get_tracing_count()

    before = fit()
    assert fit() == before


def test_outside_a_step_nothing_is_replaced():
    theirs = tf.nn.convolution, tf.nn.max_pool
    values = arrays((2, 32, 32, 8), (3, 3, 8, 4), "float32")

    def both(inputs, kernel):
        return tf.nn.max_pool(tf.nn.convolution(inputs, kernel, 1, "SAME"), 2, 2, "SAME")

    with patches.patched():
        assert tf.nn.convolution is not theirs[0]
        replaced = count_operations(both, *values)
    assert (tf.nn.convolution, tf.nn.max_pool) == theirs
    assert {"Conv2DBackpropInput", "MaxPoolGrad"} <= set(replaced)
