"""Clipping, moving averages and the ways to update metrics."""

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.engine import updates
from kerasdist.engine.state import Start
from kerasdist.engine.sums import Deltas


@pytest.mark.parametrize(("limit", "factor"), [(None, 1), (13.0, 1), (20.0, 1), (6.5, 0.5)])
def test_clipping_scales_all_gradients_by_one_factor(limit, factor):
    gradients = [tf.constant([3.0, 4.0]), None, tf.constant(12.0, tf.bfloat16)]
    first, missing, last = updates.clip(gradients, limit)
    np.testing.assert_allclose(first, [3 * factor, 4 * factor])
    assert missing is None
    assert last.dtype == tf.bfloat16
    assert float(last) == 12 * factor


def test_early_averages_follow_the_weights_more_closely():
    first, late = (updates.ema_decay(0.99, tf.constant(step)) for step in (0, 10_000))
    np.testing.assert_allclose(first, 2 / 11)
    np.testing.assert_allclose(late, 0.99)
    (new,) = updates.average([tf.constant(0.0)], [tf.constant(11.0)], 0.99, tf.constant(0))
    np.testing.assert_allclose(new, 9.0, rtol=1e-6)


# These metrics draw nothing.
SEEDS = (tf.constant(0, tf.int64), tf.constant(0, tf.int64))


class Stored:
    """A state of two metrics in one vector."""

    def apart(self, role, values):
        return tf.unstack(values[0])

    def together(self, role, values):
        return [tf.stack(values)]


@pytest.mark.parametrize("has_vector", [True, False])
def test_metrics_in_a_vector_add_up_as_single_ones(has_vector):
    deltas = Deltas([tf.constant(1.0), tf.constant(2.0)], None)
    single = Start({"metrics": [tf.constant(10.0), tf.constant(20.0)]}, [], tf.constant(0), SEEDS)
    plain = updates.SummedMetrics().new_values(single, deltas, None, ())
    joined = Start({"metrics": [tf.constant([10.0, 20.0])]}, [], tf.constant(0), SEEDS)
    if has_vector:
        deltas = Deltas(deltas.values, tf.constant([1.0, 2.0]))
    (vector,) = updates.VectorMetrics(Stored()).new_values(joined, deltas, None, ())
    assert vector.numpy().tolist() == [float(value) for value in plain] == [11, 22]
