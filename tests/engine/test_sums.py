"""Sums over shards and replicas."""

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.devices.placement import place
from kerasdist.engine import sums

RANDOM = np.random.default_rng(3)


def terms_of(numbers):
    """A shard function that gives the numbers of a table, and its row as the output."""
    table = tf.constant(numbers)
    return lambda i: ([table[i], table[i] * 2], [table[i][tf.newaxis], None])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8])
def test_a_loop_in_fixed_order_adds_as_a_balanced_tree(count):
    numbers = RANDOM.normal(size=(count, 5)).astype("float32") * 10.0 ** RANDOM.integers(0, 6)
    run = terms_of(numbers)
    looped, _ = tf.function(lambda: sums.looped(run, run(0), count, fixed_order=True))()
    unrolled, rows = tf.function(lambda: sums.unrolled(run, run(0), count))()
    tree = sums.pairwise([tf.constant(row) for row in numbers])
    for total in (looped[0], unrolled[0]):
        np.testing.assert_array_equal(total, tree)
    np.testing.assert_array_equal(looped[1], tree * 2)
    np.testing.assert_array_equal(rows[0], numbers)
    assert rows[1] is None


@pytest.mark.parametrize("count", [1, 3])
def test_a_loop_in_any_order_adds_all_shards(count):
    run = terms_of(np.ones((count, 2), "float32"))
    totals, _ = tf.function(lambda: sums.looped(run, run(0), count, fixed_order=False))()
    np.testing.assert_array_equal(totals[0], [count] * 2)


def reduced(placement, reduction):
    """What `finish` is given on each replica: the totals, the replicas' own sums, and the rows."""

    def on_replica():
        context = tf.distribute.get_replica_context()
        own = tf.cast(context.replica_id_in_sync_group, tf.float32) + tf.constant([1.0, 10.0])

        def finish(found):
            return found.totals[0], tf.stack([o[0] for o in found.of_replicas]), found.rows[0]

        return reduction.run([own], [own[:1]], finish)

    results = tf.function(lambda: placement.strategy.run(on_replica))()
    return [placement.strategy.experimental_local_results(r) for r in results]


def test_devices_that_share_memory_finish_once_with_the_sums_of_all():
    placement = place(3)
    totals, own, rows = reduced(placement, sums.reduction(placement, fixed_order=False))
    assert {len(totals), len(own), len(rows)} == {1}
    np.testing.assert_array_equal(totals[0], [6, 33])
    np.testing.assert_array_equal(own[0], [[1, 10], [2, 11], [3, 12]])
    np.testing.assert_array_equal(rows[0], [1, 2, 3])


@pytest.mark.parametrize("fixed_order", [False, True])
def test_copies_finish_each_with_the_same_totals_and_their_own_sums(fixed_order):
    totals, own, rows = reduced(place(3), sums.Copies(3, fixed_order))
    for i in range(3):
        np.testing.assert_array_equal(totals[i], [6, 33])
        np.testing.assert_array_equal(own[i], [[1 + i, 10 + i]])
        np.testing.assert_array_equal(rows[i], [1, 2, 3])


def test_one_replica_has_nothing_to_add():
    own = [tf.constant(2.0)]
    found = sums.reduction(place(1), fixed_order=True).run(own, [], lambda given: given)
    assert found.totals is own
    assert found.is_of_one_replica
