"""Sealed functions: one graph for every caller."""

import random

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.devices.placement import place
from kerasdist.engine.compiled.sealed import Sealed


def calls(graph):
    """`(function called, device)` of every call in a graph and in its loops."""
    nodes = [*graph.node, *(node for f in graph.library.function for node in f.node_def)]
    return {(n.attr["f"].func.name, n.device[-5:]) for n in nodes if "PartitionedCall" in n.op}


def test_replicas_and_loops_call_the_same_function_on_their_own_device():
    traces = []

    def swish(x, kernel):
        traces.append(x.shape)
        return tf.nn.silu(x @ kernel)

    sealed, strategy = Sealed(swish, seed=0), place(2).strategy

    @tf.function
    def step(x, kernel):
        def on_replica(x):
            first = sealed(x, kernel)
            return tf.while_loop(
                lambda i, _: i < 3, lambda i, total: (i + 1, total + sealed(x, kernel)), (0, first)
            )

        return strategy.run(on_replica, args=(x,))

    x, kernel = tf.random.normal((4, 3)), tf.random.normal((3, 2))
    graph = step.get_concrete_function(x, kernel).graph.as_graph_def()
    assert len(traces) == 1
    found = calls(graph)
    assert len({name for name, _ in found}) == 1
    assert {device for _, device in found} == {"CPU:0", "CPU:1"}
    (name, _), *_ = found
    (body,) = (f for f in graph.library.function if f.signature.name == name)
    assert body.attr["_noinline"].b
    assert not any(node.device for node in body.node_def)
    _, totals = step(x, kernel)
    for total in strategy.experimental_local_results(totals):
        np.testing.assert_allclose(total, 4 * tf.nn.silu(x @ kernel), rtol=1e-6)


def test_structures_and_none_pass_through():
    sealed = Sealed(
        lambda numbers, missing: {"sum": numbers[0] + numbers[1], "none": missing}, seed=0
    )
    found = sealed([tf.constant(1), tf.constant(2)], None)
    assert int(found["sum"]) == 3
    assert found["none"] is None
    assert int(sealed([tf.constant(1), tf.constant(2)], tf.constant(5))["none"]) == 5


def test_rows_of_known_and_unknown_size_share_a_function():
    traces = []

    def total(x, scale):
        traces.append(x.shape.as_list())
        return scale * tf.reduce_sum(x)

    sealed = Sealed(total, seed=0, rows_of=lambda x, _scale: x)

    @tf.function(input_signature=[tf.TensorSpec([None, 2])])
    def of_any_size(x):
        return sealed(x, tf.constant(2.0))

    assert float(sealed(tf.ones((3, 2)), tf.constant(2.0))) == 12
    assert float(of_any_size(tf.ones((4, 2)))) == 16
    assert traces == [[None, 2]]


def test_calls_run_on_the_given_device():
    sealed = Sealed(lambda x: x + 1, seed=0, device="CPU:1")

    @tf.function
    def caller(x):
        with tf.device("CPU:2"):
            return sealed(x)

    graph = caller.get_concrete_function(tf.constant(1)).graph.as_graph_def()
    assert {device for _, device in calls(graph)} == {"CPU:1"}


def test_gradients_are_taken_inside():
    def gradient(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x * x
        return tape.gradient(y, x)

    assert float(tf.function(Sealed(gradient, seed=0))(tf.constant(3.0))) == 6


def test_a_tensor_that_is_not_an_argument_is_an_error():
    @tf.function
    def caller(x):
        return Sealed(lambda y: x + y, seed=0)(x)

    with pytest.raises(RuntimeError, match="not an argument of a sealed function"):
        caller(tf.constant(1.0))


def test_random_numbers_of_python_and_numpy_are_seeded_while_tracing():
    def drawn(seed):
        draw = Sealed(lambda x: x + random.random() + np.random.rand(), seed=seed)
        return float(draw(tf.constant(0.0)))

    random.seed(5)
    before = random.getstate(), np.random.get_state()[1].tolist()
    first = drawn(1)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    random.random()
    assert drawn(1) == first != drawn(2)


def test_keras_settings_of_the_caller_hold():
    keras.config.set_dtype_policy("mixed_bfloat16")
    seen = []
    Sealed(lambda x: seen.append(keras.config.dtype_policy().name) or x, seed=0)(tf.constant(1.0))
    assert seen == ["mixed_bfloat16"]


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_a_fit_traces_each_kind_of_shard_once(devices, engines, regression):
    """One function for full and uneven batches, in the loop and before it."""
    model = keras.Sequential([keras.layers.Dense(4, activation="swish"), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    kerasdist.fit(
        model,
        regression,
        validation_data=regression,
        batch_size=8,
        epochs=2,
        devices=devices,
        shards=4,
        deterministic=True,
        seed=0,
        progress=False,
    )
    (engine,) = engines
    assert len(engine.functions.train._made) == len(engine.functions.test._made) == 1


@pytest.mark.parametrize("devices", [1, 4])
def test_batches_of_a_known_size_are_traced_once(devices, engines, regression):
    """Otherwise a shard outside of the loop would have another function than one inside."""
    model = keras.Sequential([keras.layers.Dense(4, activation="swish"), keras.layers.Dense(2)])
    model.compile("adam", "mse")
    data = tf.data.Dataset.from_tensor_slices(regression).batch(8, drop_remainder=True)
    options = {"devices": devices, "shards": 4, "deterministic": True, "progress": False}
    kerasdist.fit(model, data, validation_data=data, **options)
    (engine,) = engines
    assert len(engine.functions.train._made) == len(engine.functions.test._made) == 1
