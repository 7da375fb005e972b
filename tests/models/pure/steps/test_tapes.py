"""`tf.GradientTape` in a step that runs on values: the gradients that it takes of variables."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.models.pure.steps.tapes import Recording

X = tf.constant([1.0, 2.0, 3.0])


class Harness:
    """Runs a function of variables twice: on the variables themselves, and on their values."""

    def __init__(self):
        self.weight, self.other = keras.Variable([2.0, 3.0, 5.0]), keras.Variable(7.0)
        self.met, self.names = [], []

    def meet(self, gradients, names):
        self.met.append(gradients)
        self.names += names
        return gradients

    def plain(self, function):
        before = [v.numpy() for v in (self.weight, self.other)]
        result = function(self.weight, self.other)
        for variable, value in zip((self.weight, self.other), before, strict=True):
            variable.assign(value)
        return result

    def recorded(self, function, meet=None):
        variables = [self.weight, self.other]
        scope = Scope([(v, tf.identity(v.value)) for v in variables])
        recording = Recording(scope.get_current_value, variables, meet or self.meet)
        with scope, recording:
            scope.recording = recording
            return function(*variables)

    def assert_same(self, function, num_meetings=1):
        expected, found = self.plain(function), self.recorded(function)
        tf.nest.assert_same_structure(expected, found)
        for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                np.testing.assert_allclose(one, other, rtol=1e-6)
        assert len(self.met) == num_meetings


class Scope(keras.StatelessScope):
    recording = None

    def add_update(self, update):
        variable, value = update
        super().add_update((variable, tf.stop_gradient(value)))
        self.recording.assigned(variable)


@pytest.fixture
def harness():
    return Harness()


def test_gradients_of_variables_meet_with_their_names(harness):
    def step(weight, other):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * X) * other
        return tape.gradient(loss, [weight, other])

    harness.assert_same(step)
    assert harness.names == [harness.weight.path, harness.other.path]
    doubled = harness.recorded(step, lambda gradients, names: [2 * g for g in gradients])
    np.testing.assert_allclose(doubled[0], 2 * 7.0 * X)


def test_sources_keep_their_structure_and_may_lack_a_gradient(harness):
    def step(weight, other):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * X)
        return tape.gradient(loss, {"a": weight, "b": [other]})

    harness.assert_same(step)
    assert harness.recorded(step)["b"] == [None]


def test_unconnected_gradients_may_be_zero(harness):
    def step(weight, other):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * X)
        return tape.gradient(loss, other.value, unconnected_gradients=tf.UnconnectedGradients.ZERO)

    harness.assert_same(step)


def test_a_persistent_tape_is_asked_twice(harness):
    def step(weight, other):
        with tf.GradientTape(persistent=True) as tape:
            first = tf.reduce_sum(weight * X) * other
            second = tf.reduce_sum(weight**2)
        return tape.gradient(first, [weight, other]), tape.gradient(second, weight)

    harness.assert_same(step, num_meetings=2)


def test_a_tape_that_does_not_watch_by_itself(harness):
    def step(weight, other):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weight.value)
            loss = tf.reduce_sum(weight * X) * other
        return tape.gradient(loss, [weight, other])

    harness.assert_same(step)
    assert harness.recorded(step)[1] is None


def test_the_gradient_of_a_variable_that_was_assigned_while_recording(harness):
    def step(weight, other):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight**2)
            weight.assign(weight * 2.0)
            loss += 10.0 * tf.reduce_sum(weight**2)
        return tape.gradient(loss, weight)

    harness.assert_same(step)


def test_an_assigned_variable_is_watched_only_where_it_was(harness):
    def step(weight, other):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(other.value)
            weight.assign(weight * 2.0)
            other.assign(other + 1.0)
            loss = tf.reduce_sum(weight) * other
        return tape.gradient(loss, [weight, other])

    harness.assert_same(step)


def test_nothing_is_recorded_after_the_tape_or_while_it_pauses(harness):
    def step(weight, other):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(weight * X)
            with tape.stop_recording():
                factor = other * 3.0
            loss *= factor
        weight.assign(weight * 2.0)
        return tape.gradient(loss, [weight, other])

    harness.assert_same(step)


def test_a_penalty_on_gradients_of_inputs_meets_once(harness):
    """As in a WGAN: the inner tape's source is no weight."""

    def step(weight, other):
        x = X + 0.0
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                score = tf.reduce_sum((x * weight) ** 3)
            slope = inner.gradient(score, x)
            loss = tf.reduce_sum(slope**2) + other
        return outer.gradient(loss, [weight, other])

    harness.assert_same(step)


def test_a_gradient_of_a_gradient_of_weights_meets_at_the_outer_tape(harness):
    """As in MAML: what the inner tape gives belongs to a shard until the outer one is asked."""

    def step(weight, other):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                first = tf.reduce_sum((weight * X) ** 3)
            adapted = weight - 0.1 * inner.gradient(first, weight)
            loss = tf.reduce_sum(adapted**2) * other
        return outer.gradient(loss, [weight, other])

    harness.assert_same(step)


def test_rows_of_an_embedding_become_a_whole_gradient(harness):
    def step(weight, other):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather(weight, [0, 0, 2]) * other)
        return [tf.convert_to_tensor(tape.gradient(loss, weight))]

    harness.assert_same(step)
    ((gradient,),) = harness.met
    assert tf.is_tensor(gradient)
    np.testing.assert_allclose(gradient, [14.0, 0.0, 7.0])


def test_gradients_for_inputs_alone_do_not_meet(harness):
    def step(weight, other):
        x = X + 0.0
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(weight * x)
        return tape.gradient(loss, x)

    harness.assert_same(step, num_meetings=0)


@pytest.mark.parametrize("watches", [False, True])
def test_a_value_that_stands_for_a_variable_counts_as_the_variable(harness, watches):
    def step(weight, other):
        value = weight.value
        with tf.GradientTape(watch_accessed_variables=watches) as tape:
            if not watches:
                tape.watch([value])
            loss = tf.reduce_sum(value * X)
        return tape.gradient(loss, value)

    harness.assert_same(step)


@pytest.mark.parametrize("method", ["jacobian", "batch_jacobian"])
def test_jacobians_of_weights_are_refused_and_others_computed(harness, method):
    def of_weights(weight, other):
        with tf.GradientTape() as tape:
            values = weight * X
        return tape.jacobian(values, weight)

    def of_inputs(weight, other):
        x = tf.stack([X, X])
        with tf.GradientTape() as tape:
            tape.watch(x)
            values = x**2 * weight
        return getattr(tape, method)(values, x)

    with pytest.raises(KerasdistError, match=r"calls `tape.jacobian` for weights.*tape.gradient"):
        harness.recorded(of_weights)
    harness.assert_same(of_inputs, num_meetings=0)


def test_tapes_are_tensorflows_again_afterwards(harness):
    names = ("__init__", "__enter__", "__exit__", "watch", "gradient", "jacobian", "batch_jacobian")
    before = [vars(tf.GradientTape)[name] for name in names]
    seen = []
    harness.recorded(lambda *_: seen.extend(vars(tf.GradientTape)[name] for name in names))
    assert all(one is not other for one, other in zip(seen, before, strict=True))
    with pytest.raises(ZeroDivisionError):
        harness.recorded(lambda *_: 1 / 0)
    assert [vars(tf.GradientTape)[name] for name in names] == before
