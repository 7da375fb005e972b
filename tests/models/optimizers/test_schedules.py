"""Schedules by name, against NumPy at every step, and in training."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import kerasdist
from kerasdist import KerasdistError
from kerasdist.models.optimizers.schedules import Schedule

TOTAL, PEAK = 57, 0.3


def constant(step):
    return 1.0


def exponential(step):
    return 0.7 ** (step / 9)


def staircase(step):
    return 0.7 ** (step // 9)


def poly(step, total, power=0.9, end=0.0):
    return end + (1 - end) * (1 - min(step, total) / total) ** power


def cosine(step, total, end=0.0):
    return end + (1 - end) * (1 + np.cos(np.pi * min(step, total) / total)) / 2


def triangle(step, peak, total=TOTAL, start=0.2, end=0.07):
    return np.interp(step, [0, peak, total], [start, 1, end])


def warm(function, steps, start=None):
    """A reference with a warm-up before it."""

    def warmed(step):
        if step < steps:
            first = 1 / (steps + 1) if start is None else start
            return first + (1 - first) * step / steps
        return function(step - steps)

    return warmed


DECAY = {"decay_steps": 9, "decay_rate": 0.7}
TRIANGLE = {"start_factor": 0.2, "end_factor": 0.07}
# Of each case: the name, its settings and the factor of a step.
CASES = {
    "constant, warm-up": ("constant", {"warmup_steps": 8}, warm(constant, 8)),
    "constant, warm-up from 0": (
        "constant",
        {"warmup_steps": 8, "start_factor": 0},
        warm(constant, 8, 0),
    ),
    "exponential": ("exponential", DECAY, exponential),
    "staircase": ("exponential", DECAY | {"staircase": True}, staircase),
    "staircase, warm-up": (
        "exponential",
        DECAY | {"staircase": True, "warmup_steps": 5},
        warm(staircase, 5),
    ),
    "exponential, warm-up": ("exponential", DECAY | {"warmup_steps": 5}, warm(exponential, 5)),
    "poly": ("poly", {}, lambda s: poly(s, TOTAL)),
    "poly, end and power": (
        "poly",
        {"end_factor": 0.1, "power": 2},
        lambda s: poly(s, TOTAL, 2, 0.1),
    ),
    "poly, warm-up": ("poly", {"warmup_steps": 7}, warm(lambda s: poly(s, TOTAL - 7), 7)),
    "poly, own end": ("poly", {"decay_steps": 31}, lambda s: poly(s, 31)),
    "cosine": ("cosine", {}, lambda s: cosine(s, TOTAL)),
    "cosine, end": ("cosine", {"end_factor": 0.2}, lambda s: cosine(s, TOTAL, 0.2)),
    "cosine, warm-up": ("cosine", {"warmup_steps": 1}, warm(lambda s: cosine(s, TOTAL - 1), 1)),
    "onecycle": ("onecycle", TRIANGLE | {"peak_at": 0.23}, lambda s: triangle(s, 13)),
    "onecycle, steps": ("onecycle", TRIANGLE | {"warmup_steps": 20}, lambda s: triangle(s, 20)),
    "onecycle, from its peak": ("onecycle", {"peak_at": 0}, lambda s: poly(s, TOTAL, 1)),
    "onecycle, plain": ("onecycle", {}, lambda s: triangle(s, 14, start=1 / 15, end=0)),
}
each_case = pytest.mark.parametrize("case", CASES)


def built(case, **changes):
    name, settings, reference = CASES[case]
    settings = {"learning_rate": PEAK, "total_steps": TOTAL} | settings | changes
    return kerasdist.schedule(name, **settings), reference


@each_case
def test_every_step_is_the_formula_in_float32(case):
    """The nearest float32 of the exact value, from the first step to beyond the last."""
    rates, reference = built(case)
    for step in range(TOTAL + 4):
        rate = rates(tf.constant(step, tf.int64))
        assert rate.dtype == tf.float32
        np.testing.assert_array_max_ulp(rate.numpy(), np.float32(PEAK * reference(step)), maxulp=0)


@each_case
def test_every_step_is_the_formula_in_float64(case):
    keras.config.set_floatx("float64")
    rates, reference = built(case)
    for step in range(TOTAL + 4):
        rate = rates(tf.constant(step, tf.int64))
        assert rate.dtype == tf.float64
        np.testing.assert_allclose(rate, PEAK * reference(step), rtol=1e-14, atol=1e-17)


def test_first_steps_peaks_and_ends():
    """The values that a reader of a formula checks first."""
    rates, _ = built("onecycle")
    ends = [float(rates(step)) for step in (0, 13, TOTAL, TOTAL + 1, 10**12)]
    np.testing.assert_allclose(ends, [0.06, 0.3, 0.021, 0.021, 0.021], rtol=1e-6)
    for case in ("poly", "cosine"):
        rates, _ = built(case)
        assert float(rates(0)) == np.float32(PEAK)
        assert 0 < float(rates(TOTAL - 1)) < 0.01
        assert float(rates(TOTAL)) == float(rates(TOTAL + 1)) == 0
    rates, _ = built("poly, warm-up")
    np.testing.assert_allclose([float(rates(step)) for step in (0, 7)], [PEAK / 8, PEAK], rtol=1e-6)


def test_steps_of_any_form():
    rates, reference = built("poly")
    expected = np.float32(PEAK * reference(11))
    for step in (11, np.int64(11), tf.constant(11), keras.Variable(11, dtype="int64")):
        assert float(rates(step)) == expected
    assert float(tf.function(rates)(tf.constant(11, tf.int64))) == expected


def test_no_step_of_a_long_training_is_rounded_away():
    """float32 has no 2**24 + 1, and int32 no 2**31."""
    jump = 2**25
    stairs = kerasdist.schedule(
        "exponential", learning_rate=1.0, decay_steps=jump, decay_rate=0.5, staircase=True
    )
    assert [float(stairs(step)) for step in (jump - 1, jump, 3 * jump - 1)] == [1.0, 0.5, 0.25]
    ramp = kerasdist.schedule("poly", learning_rate=1.0, power=1, total_steps=2**33)
    assert float(ramp(2**32)) == 0.5
    assert float(ramp(2**33 - 1)) == 2.0**-33


def test_keras_has_the_same_formulae():
    schedules = keras.optimizers.schedules
    pairs = [
        (built("exponential")[0], schedules.ExponentialDecay(PEAK, 9, 0.7)),
        (built("staircase")[0], schedules.ExponentialDecay(PEAK, 9, 0.7, staircase=True)),
        (built("poly")[0], schedules.PolynomialDecay(PEAK, TOTAL, 0.0, power=0.9)),
        (built("cosine, end")[0], schedules.CosineDecay(PEAK, TOTAL, alpha=0.2)),
    ]
    for ours, theirs in pairs:
        steps = [*range(0, TOTAL, 6), TOTAL, TOTAL + 1]
        np.testing.assert_allclose(
            [ours(s) for s in steps], [theirs(s) for s in steps], rtol=1e-5, atol=1e-7
        )


@each_case
def test_a_schedule_is_saved_with_its_optimizer(case):
    rates, _ = built(case)
    assert (
        keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(rates)) == rates
    )
    config = keras.optimizers.SGD(rates).get_config()
    assert keras.optimizers.SGD.from_config(config)._learning_rate == rates


def test_a_constant_rate_is_a_number_that_callbacks_may_change():
    assert kerasdist.schedule("constant", learning_rate=1) == 1.0
    optimizer = kerasdist.optimizer("sgd", learning_rate=1)
    optimizer.learning_rate = 0.5
    assert float(optimizer.learning_rate) == 0.5


@pytest.mark.parametrize(("case", "devices"), [("onecycle", 1), ("staircase, warm-up", 2)])
def test_training_takes_the_rate_of_each_step(case, devices):
    """A gradient of 1: the weight is what the rates add up to, of steps of two fits."""
    rates, reference = built(case)
    model = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")]
    )
    model.compile(keras.optimizers.SGD(rates), lambda y, output: keras.ops.mean(output, axis=-1))
    ones = np.ones((12, 1), "float32")
    options = {"batch_size": 4, "devices": devices, "progress": False}
    kerasdist.fit(model, (ones, ones), steps=9, **options)
    kerasdist.fit(model, (ones, ones), steps=5, **options)
    total = sum(np.float32(PEAK * reference(step)) for step in range(14))
    np.testing.assert_allclose(model.get_weights()[0], [[-total]], rtol=1e-6)


@pytest.mark.parametrize("name", ["poly", "cosine", "onecycle"])
def test_a_schedule_with_an_end_needs_one(name):
    with pytest.raises(KerasdistError, match=rf"`schedule='{name}'` without.*count_steps"):
        kerasdist.schedule(name, learning_rate=0.1)
    assert isinstance(kerasdist.schedule(name, decay_steps=10), Schedule)


def test_a_warm_up_must_end():
    for steps in (10, 11):
        with pytest.raises(KerasdistError, match=rf"`warmup_steps={steps}` and `total_steps=10`"):
            kerasdist.schedule("constant", warmup_steps=steps, total_steps=10)
    with pytest.raises(KerasdistError, match="`warmup_steps=9` and `decay_steps=9`"):
        kerasdist.schedule("cosine", warmup_steps=9, decay_steps=9, total_steps=20)
    kerasdist.schedule("constant", warmup_steps=9, total_steps=10)
    # Of exponential these are the steps of one decay, not its end.
    kerasdist.schedule("exponential", warmup_steps=9, decay_steps=9, total_steps=10)


def test_a_number_of_steps_is_checked():
    for steps in (0, -1, 2.5, True):
        with pytest.raises(KerasdistError, match=rf"`total_steps={steps}`.*at least 1"):
            kerasdist.schedule("poly", total_steps=steps)


def test_steps_are_counted_as_fit_counts_them(regression):
    """37 examples in batches of 8: the last of an epoch is smaller."""
    assert kerasdist.count_steps(37, 8, epochs=3) == 15
    assert kerasdist.count_steps(40, 8, epochs=3) == 15
    assert kerasdist.count_steps(37, 8, epochs=3, steps=4) == 4
    model = keras.Sequential([keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    kerasdist.fit(model, regression, batch_size=8, epochs=3, progress=False)
    assert int(model.optimizer.iterations) == 15
    with pytest.raises(KerasdistError, match="`batch_size=0`"):
        kerasdist.count_steps(37, 0)
    with pytest.raises(KerasdistError, match="`steps=0`"):
        kerasdist.count_steps(37, 8, steps=0)
