"""GRU and LSTM as one operation over time: Keras's maths, in every use of the layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.models.pure.layers import recurrence

CASES = [
    {},
    {"return_sequences": True},
    {"return_sequences": True, "go_backwards": True},
    {"return_sequences": True, "return_state": True},
    {"use_bias": False},
    {"zero_output_for_mask": True, "return_sequences": True},
]


@pytest.fixture
def few_rows(monkeypatch):
    """Small batches run in halves, too."""
    monkeypatch.setattr(recurrence, "_ROWS_OF_A_LOOP", 1)


def in_halves(*args):
    return recurrence.loop(*args, True)


def results(layer, inputs, mask, initial_state, loop=None):
    """The layer's outputs and gradients, with its own loop or another, in a compiled function."""
    variables = [v.value for v in layer.trainable_variables]
    states = [tf.constant(state) for state in initial_state]

    @tf.function
    def compute(inputs):
        with tf.GradientTape() as tape:
            tape.watch([inputs, *states])
            if loop:
                outputs = loop(layer, inputs, states, mask)
            else:
                outputs = layer.inner_loop(inputs, states, mask)
            loss = tf.add_n([tf.reduce_sum(tf.sin(t)) for t in tf.nest.flatten(outputs)])
        return tf.nest.flatten(outputs), tape.gradient(loss, [inputs, *states, *variables])

    return [tensor.numpy() for part in compute(tf.constant(inputs)) for tensor in part]


MASKS = {
    "none": None,
    "at the end": np.arange(5) < np.array([[5], [2], [4]]),
    "anywhere": np.array([[0, 1, 0, 1, 1], [1, 0, 0, 1, 0], [0, 0, 0, 0, 0]], bool),
}


@pytest.mark.parametrize("masked", MASKS)
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        *((keras.layers.GRU, options) for options in CASES),
        *((keras.layers.LSTM, options) for options in CASES),
    ],
)
def test_outputs_and_gradients_are_kerass(kind, options, masked, few_rows):
    random = np.random.default_rng(0)
    inputs = random.normal(size=(3, 5, 4))
    mask = MASKS[masked]
    mask = None if mask is None else tf.constant(mask)
    layer = kind(6, dtype="float64", bias_initializer="random_normal", **options)
    layer.build(inputs.shape)
    states = [random.normal(size=(3, 6)) for _ in tf.nest.flatten(layer.state_size)]
    assert recurrence.is_quick(layer)
    theirs = results(layer, inputs, mask, states)
    for loop in (recurrence.loop, in_halves):
        ours = results(layer, inputs, mask, states, loop)
        for a, b in zip(ours, theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("masked", ["none", "anywhere"])
@pytest.mark.parametrize("kind", [keras.layers.GRU, keras.layers.LSTM])
def test_a_gradient_of_a_gradient_is_kerass(kind, masked, few_rows):
    mask = MASKS[masked]
    mask = None if mask is None else tf.constant(mask)
    inputs = np.random.default_rng(0).normal(size=(3, 5, 4))
    layer = kind(6, dtype="float64")
    layer.build(inputs.shape)
    states = [tf.zeros((3, 6), tf.float64) for _ in tf.nest.flatten(layer.state_size)]
    variables = [v.value for v in layer.trainable_variables]

    @tf.function
    def penalised(inputs, loop):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(inputs)
                loss = tf.reduce_sum(tf.sin(loop(layer, inputs, states, mask)[1]))
            penalty = tf.reduce_sum(tf.square(inner.gradient(loss, inputs)))
        return outer.gradient(penalty, variables)

    theirs = penalised(tf.constant(inputs), lambda layer, *args: layer.inner_loop(*args))
    for loop in (recurrence.loop, in_halves):
        for a, b in zip(penalised(tf.constant(inputs), loop), theirs, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("loop", [recurrence.loop, in_halves])
@pytest.mark.parametrize("kind", [keras.layers.GRU, keras.layers.LSTM])
def test_one_trace_serves_batches_of_every_size_and_length(kind, loop):
    layer = kind(6, dtype="float64", return_sequences=True)
    layer.build((None, None, 4))
    spec = tf.TensorSpec((None, None, 4), tf.float64)

    @tf.function(input_signature=[spec])
    def outputs(inputs):
        states = layer.get_initial_state(tf.shape(inputs)[0])
        return loop(layer, inputs, states, None)[1]

    for shape in ((3, 5, 4), (1, 2, 4), (4, 1, 4)):
        inputs = np.random.default_rng(0).normal(size=shape)
        np.testing.assert_allclose(outputs(inputs), layer(inputs), rtol=1e-11, atol=1e-13)


class OwnCell(keras.layers.GRUCell):
    pass


class OwnLayer(keras.layers.LSTM):
    pass


@pytest.mark.parametrize(
    "layer",
    [
        keras.layers.GRU(4, dropout=0.1),
        keras.layers.LSTM(4, recurrent_dropout=0.1),
        keras.layers.GRU(4, unroll=True),
        keras.layers.GRU(4, reset_after=False),
        keras.layers.GRU(4, activation="relu"),
        keras.layers.LSTM(4, recurrent_activation="hard_sigmoid"),
        keras.layers.GRU(4, dtype="mixed_bfloat16"),
        keras.layers.RNN(OwnCell(4)),
        OwnLayer(4),
    ],
)
def test_others_are_left_to_keras(layer):
    layer.build((2, 5, 3))
    assert not recurrence.is_quick(layer)


def recurrent(kind):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((None, 3)),
            keras.layers.Masking(),
            keras.layers.Bidirectional(kind(5)),
            keras.layers.Dense(2),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    return model


@pytest.mark.parametrize(("kind", "devices"), [(keras.layers.GRU, 2), (keras.layers.LSTM, 1)])
def test_a_fit_uses_it_and_equals_keras(kind, devices, monkeypatch):
    used = []
    quick = recurrence.loop
    monkeypatch.setattr(recurrence, "loop", lambda *args: used.append(args) or quick(*args))
    random = np.random.default_rng(0)
    x = random.normal(size=(16, 7, 3)).astype("float32")
    x[:8, 4:] = 0
    y = random.integers(0, 2, 16)
    ours, theirs, keras_loop = recurrent(kind), recurrent(kind), kind.inner_loop
    options = {"epochs": 3, "batch_size": 8, "shuffle": False}
    kerasdist.fit(ours, (x, y), **options, devices=devices)
    assert used
    assert kind.inner_loop is keras_loop
    theirs.fit(x, y, **options, verbose=0)
    for a, b in zip(ours.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "halves"),
    [({}, True), ({"devices": 2}, False), ({"devices": 1, "deterministic": True}, False)],
)
def test_halves_run_side_by_side_only_where_nothing_else_does(options, halves, monkeypatch):
    asked = []
    quick = recurrence.loop
    monkeypatch.setattr(recurrence, "loop", lambda *args: asked.append(args[-1]) or quick(*args))
    x = np.ones((16, 7, 3), "float32")
    kerasdist.fit(recurrent(keras.layers.LSTM), (x, np.ones(16)), batch_size=8, **options)
    assert asked
    assert set(asked) == {halves}


@pytest.mark.parametrize("kind", [keras.layers.GRU, keras.layers.LSTM])
def test_a_stateful_layer_and_its_states_equal_keras(kind, few_rows):
    def build():
        keras.utils.set_random_seed(3)
        inputs = keras.Input((7, 3), batch_size=8)
        outputs, *states = kind(5, stateful=True, return_state=True, go_backwards=True)(inputs)
        outputs = keras.layers.Concatenate()([outputs, *states])
        model = keras.Model(inputs, keras.layers.Dense(2)(outputs))
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    random = np.random.default_rng(0)
    x = random.normal(size=(16, 7, 3)).astype("float32")
    y = random.normal(size=(16, 2)).astype("float32")
    ours, theirs = build(), build()
    options = {"epochs": 2, "batch_size": 8, "shuffle": False}
    kerasdist.fit(ours, (x, y), **options, devices=1)
    theirs.fit(x, y, **options, verbose=0)
    for a, b in zip(ours.weights, theirs.weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", [keras.layers.GRU, keras.layers.LSTM])
def test_deterministic_runs_have_the_same_bits_on_any_number_of_devices(kind):
    random = np.random.default_rng(0)
    x = random.normal(size=(64, 7, 3)).astype("float32")
    y = random.integers(0, 2, 64)

    def weights(devices):
        model = recurrent(kind)
        options = {"shards": 4, "deterministic": True, "batch_size": 32}
        kerasdist.fit(model, (x, y), **options, devices=devices, shuffle=False)
        return model.get_weights()

    one, *others = (weights(devices) for devices in (1, 2, 4))
    for other in others:
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
