"""What a range test suggests, on curves of which the answer is known."""

import doctest
import math

import numpy as np
import pytest

from kerasdist.finders import batch_search, suggestion
from kerasdist.finders.suggestion import Divergence, smooth, suggest

RATES = np.geomspace(1e-7, 10, 100)


def fall(steep_at, lowest_at, rises=True):
    """Falls fastest at one rate, and rises from another one on."""
    steps = np.log10(RATES)
    losses = 2.3 - 1.5 / (1 + np.exp(-4 * (steps - math.log10(steep_at))))
    if rises:
        losses += np.maximum(0, steps - math.log10(lowest_at)) ** 2 * 5
    return losses


@pytest.mark.parametrize("module", [suggestion, batch_search])
def test_the_examples_run(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("noise", [0.0, 0.1])
@pytest.mark.parametrize("steep_at", [1e-5, 1e-3, 0.02])
def test_the_middle_of_the_fall_is_found(steep_at, noise):
    random = np.random.default_rng(0)
    losses = fall(steep_at, 20 * steep_at) + noise * random.normal(size=100)
    found, reason = suggest(RATES, losses)
    assert steep_at / 2.5 < found < steep_at * 2.5
    assert "half of the fall is reached there" in reason
    assert "then rises" in reason


def test_the_noise_of_small_batches_has_slopes_that_mean_nothing():
    """Of a regression with batches of 8."""
    random = np.random.default_rng(5)
    for _ in range(20):
        losses = fall(0.02, 0.4) * (1 + 0.6 * random.uniform(-1, 1, 100))
        found, _ = suggest(RATES, losses)
        assert 0.002 < found < 0.2


def test_batches_that_differ_much_and_begin_with_easy_ones_have_no_suggestion():
    losses = np.where(np.arange(100) < 12, 1.0, 2.0)
    losses[6] = 0.7
    found, reason = suggest(RATES, losses)
    assert found is None
    assert "fell at no rate" in reason


def test_near_the_lowest_loss_a_third_of_its_rate_is_suggested():
    losses = np.where(RATES < 0.1, 2.0 - np.minimum(RATES, 0.1) * 15, 5.0)
    found, reason = suggest(RATES, losses)
    assert 0.01 < found < 0.05
    assert "a third of" in reason


def test_easy_data_that_low_rates_learn_slowly_has_no_low_suggestion():
    """Of the drawn photos of `kerasdist new`: most of the loss falls at rates that are too low."""
    known = {1e-7: 2.5, 2e-5: 2.5, 1.4e-4: 1.77, 9e-4: 0.36, 6e-3: 0.26, 0.04: 0.017, 0.24: 1e-3}
    known |= {1.6: 0.05, 3.3: 2.0}
    rates = RATES[RATES < 3.3]
    losses = np.interp(np.log(rates), np.log(list(known)), list(known.values()))
    found, reason = suggest(rates, losses)
    assert 0.001 < found < 0.01
    assert reason.startswith("a tenth of 0.0")
    assert reason.endswith(", where the loss is nearly lowest, then rises")


@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_nothing_is_suggested_where_the_loss_does_not_fall(noise):
    random = np.random.default_rng(1)
    losses = 1.0 + noise * random.normal(size=100) + np.maximum(0, np.log10(RATES)) * 9
    found, reason = suggest(RATES, losses)
    assert found is None
    assert "fell at no rate" in reason


def test_what_diverges_does_not_move_the_suggestion():
    losses = fall(1e-3, 20e-3)
    expected, _ = suggest(RATES[:80], losses[:80])
    exploded = np.append(losses[:79], 1e30)
    found, _ = suggest(RATES[:80], exploded)
    assert found == pytest.approx(expected, rel=0.3)


def test_smoothing_keeps_a_line_and_is_not_late():
    line = np.linspace(3.0, 1.0, 50)
    assert smooth(line)[10:40] == pytest.approx(line[10:40], abs=1e-6)


def test_divergence_needs_more_than_noise():
    random = np.random.default_rng(2)
    watch = Divergence()
    assert not any(watch.is_reached(loss) for loss in 0.01 + random.uniform(0, 0.02, 300))
    watch = Divergence()
    assert not any(watch.is_reached(loss) for loss in np.linspace(2.3, 0.01, 50))
    assert any(watch.is_reached(loss) for loss in np.geomspace(0.01, 100, 30))


def test_a_loss_may_be_negative():
    watch = Divergence()
    assert not any(watch.is_reached(loss) for loss in np.linspace(-1, -9, 50))
    assert suggest(RATES, fall(1e-3, 2e-2) - 50)[0] == suggest(RATES, fall(1e-3, 2e-2))[0]
