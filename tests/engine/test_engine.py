"""The engine's loop: counts, ends, and what it costs."""

import importlib.util
import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist.devices.placement import place
from kerasdist.engine.compiled_loop import END_OF_DATA, NOT_FINITE, REACHED
from kerasdist.engine.engine import Engine
from kerasdist.engine.settings import Settings


def built(loss="mse"):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), loss)
    model.optimizer.build(model.trainable_variables)
    return model


def batches(*sizes, bad=None):
    """Batches of ones of these sizes; the one with the index `bad` has a NaN in its last row."""

    def generate():
        for i, n in enumerate(sizes):
            x = np.ones((n, 2), "float32")
            if i == bad:
                x[-1, 0] = np.nan
            yield x, np.ones((n, 1), "float32")

    spec = (tf.TensorSpec((None, 2)), tf.TensorSpec((None, 1)))
    return iter(tf.data.Dataset.from_generator(generate, output_signature=spec))


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_loop_counts_steps_and_examples_to_the_end_of_data(replicas):
    engine = Engine(built(), place(replicas), Settings(shards=replicas))
    iterator = batches(4, 3, 1, 2)
    first = engine.train(iterator, 3)
    assert (first.num_steps, first.num_examples, first.status) == (3, 8, REACHED)
    second = engine.train(iterator, 3)
    assert (second.num_steps, second.num_examples, second.status) == (1, 2, END_OF_DATA)
    engine.state.write_back("optimizer")
    assert int(engine.model.optimizer.iterations) == 4


@pytest.mark.parametrize("replicas", [1, 2, 3])
def test_a_step_that_is_not_finite_is_not_written_and_is_named(replicas):
    """The NaN is in the last row, so on the last replica only."""
    engine = Engine(built(), place(replicas), Settings(shards=replicas))
    iterator = batches(6, 6, 6, bad=1)
    outcome = engine.train(iterator, 3)
    assert (outcome.num_steps, outcome.status) == (1, NOT_FINITE)
    assert outcome.not_finite[0] == "loss"
    assert "gradient of sequential" in outcome.not_finite[1]
    engine.state.write_back()
    assert all(np.isfinite(w).all() for w in engine.model.get_weights())
    assert int(engine.model.optimizer.iterations) == 1
    after = engine.train(iterator, 3)  # the engine can continue
    assert (after.num_steps, after.status) == (1, END_OF_DATA)


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_observed_step_counts_as_a_step_of_the_loop_does(replicas):
    engine = Engine(built(), place(replicas), Settings(shards=replicas))
    iterator = batches(4, 3, 6, 1, bad=2)
    first, second, bad, last, over = (engine.train_observed(iterator) for _ in range(5))
    assert (first.num_steps, first.num_examples, first.status) == (1, 4, REACHED)
    assert (second.num_steps, second.num_examples, second.status) == (1, 3, REACHED)
    assert (bad.num_steps, bad.num_examples, bad.status) == (0, 0, NOT_FINITE)
    assert (last.num_steps, last.num_examples, last.status) == (1, 1, REACHED)
    assert (over.num_steps, over.num_examples, over.status) == (0, 0, END_OF_DATA)
    assert [o.seen is None for o in (first, second, bad, last, over)] == [0, 0, 1, 0, 1]
    assert first.loss == first.seen.loss
    assert engine.observed_step.experimental_get_tracing_count() == 1
    assert engine.train_loop.experimental_get_tracing_count() == 0
    engine.state.write_back("optimizer")
    assert int(engine.model.optimizer.iterations) == 3


@pytest.mark.parametrize("replicas", [1, 3])
def test_an_observed_step_that_is_not_finite_is_not_written_and_is_named(replicas):
    outcomes, weights = [], []
    for observe in (False, True):
        keras.utils.set_random_seed(1)
        engine = Engine(built(), place(replicas), Settings(shards=replicas))
        iterator = batches(6, 6, bad=1)
        for _ in range(2):
            last = engine.train_observed(iterator) if observe else engine.train(iterator, 1)
        outcomes.append((last.num_steps, last.status, last.replica, len(last.not_finite)))
        engine.state.write_back()
        weights.append(engine.model.get_weights())
    assert outcomes[0] == outcomes[1] == (0, NOT_FINITE, replicas - 1, 3)
    for one, two in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, two)
        assert np.isfinite(two).all()


def test_one_device_trains_the_callers_own_variables():
    model = built()
    engine = Engine(model, place(1), Settings(shards=1))
    before = model.get_weights()[0]
    engine.train(batches(4), 1)
    assert not np.array_equal(before, model.get_weights()[0])  # without write_back


def test_the_graph_of_a_step_does_not_grow_with_the_weights():
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(1)(keras.layers.Dense(100_000)(inputs)))
    model.compile("sgd", "mse")
    model.optimizer.build(model.trainable_variables)
    engine = Engine(model, place(2), Settings(shards=2))
    iterator, num_steps = batches(4), tf.constant(1, tf.int64)
    graph = engine.train_loop.get_concrete_function(iterator, num_steps).graph
    assert graph.as_graph_def().ByteSize() < 400_000


def test_changes_by_the_caller_reach_every_replica():
    model = built()
    engine = Engine(model, place(3), Settings(shards=3))
    engine.train(batches(6), 1)
    engine.state.write_back()
    model.optimizer.learning_rate = 0.0
    model.set_weights([np.full((2, 1), 5.0), np.zeros(1)])
    engine.state.refresh()
    engine.train(batches(6), 1)
    engine.state.write_back()
    np.testing.assert_array_equal(model.get_weights()[0], np.full((2, 1), 5.0))


def test_diverging_stops_with_the_last_good_weights(regression):
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile(keras.optimizers.SGD(1e30), "mse")
    with pytest.raises(
        kerasdist.DivergedError, match=r"Step \d+ is not finite.*clip_norm"
    ) as raised:
        kerasdist.fit(model, regression, batch_size=8, epochs=9, devices=2, progress=False)
    assert raised.value.step > 1
    assert raised.value.names
    assert all(np.isfinite(w).all() for w in model.get_weights())


def test_more_shards_than_devices_lower_the_peak_memory():
    path = pathlib.Path(__file__).parents[2] / "benchmarks" / "memory.py"
    spec = importlib.util.spec_from_file_location("memory", path)
    memory = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(memory)
    assert memory.measure(8, steps=1) < 0.9 * memory.measure(1, steps=1)
