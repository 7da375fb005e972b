"""The quicker gradients on CPUs: TensorFlow's own maths, in every use of a convolution."""

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


def test_repeated_fits_share_their_functions():
    def fit():
        kerasdist.fit(convolutions(), images(), epochs=1, batch_size=16, devices=1)
        return kernels._convolution.experimental_get_tracing_count()

    before = fit()
    assert fit() == before


def test_outside_a_step_nothing_is_replaced():
    theirs = tf.nn.convolution
    values = arrays((2, 6, 6, 8), (3, 3, 8, 4), "float32")
    with patches.patched():
        assert tf.nn.convolution is not theirs
        replaced = count_operations(lambda x, w: tf.nn.convolution(x, w, 1, "SAME"), *values)
    assert tf.nn.convolution is theirs
    assert "Conv2DBackpropInput" in replaced
