"""Sums over replicas."""

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.devices.placement import place
from kerasdist.engine.transfer import exchange

RANDOM = np.random.default_rng(4)


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
    totals, own, rows = reduced(placement, exchange.reduction(placement, fixed_order=False))
    assert {len(totals), len(own), len(rows)} == {1}
    np.testing.assert_array_equal(totals[0], [6, 33])
    np.testing.assert_array_equal(own[0], [[1, 10], [2, 11], [3, 12]])
    np.testing.assert_array_equal(rows[0], [1, 2, 3])


@pytest.mark.parametrize("fixed_order", [False, True])
def test_copies_finish_each_with_the_same_totals_and_their_own_sums(fixed_order):
    totals, own, rows = reduced(place(3), exchange.Copies(place(3), fixed_order))
    for i in range(3):
        np.testing.assert_array_equal(totals[i], [6, 33])
        np.testing.assert_array_equal(own[i], [[1 + i, 10 + i]])
        np.testing.assert_array_equal(rows[i], [1, 2, 3])


def test_one_replica_has_nothing_to_add():
    own = [tf.constant(2.0)]
    found = exchange.reduction(place(1), fixed_order=True).run(own, [], lambda given: given)
    assert found.totals is own
    assert found.is_of_one_replica


def on_each(placement, function):
    """`function(replica number)` on every replica."""

    def on_replica():
        return function(tf.distribute.get_replica_context().replica_id_in_sync_group)

    results = tf.function(lambda: placement.strategy.run(on_replica))()
    local = placement.strategy.experimental_local_results
    flat = [local(r) for r in tf.nest.flatten(results)]
    return [[column[i] for column in flat] for i in range(len(placement.names))]


@pytest.mark.parametrize("count", [2, 3, 4])
def test_large_and_small_tensors_of_any_dtype_are_added_in_the_fixed_order(count):
    shapes = [(), (70_001,), (3, 5), (300, 301), (2,), (7,), (4,)]
    dtypes = ["float32", "float32", "float32", "float64", "int64", "int32", "float64"]
    values = [
        np.asarray(RANDOM.normal(size=(count, *shape)) * 1e3).astype(dtype)
        for shape, dtype in zip(shapes, dtypes, strict=True)
    ]
    placement = place(count)

    def total(replica):
        own = [tf.gather(tf.constant(value), replica) for value in values]
        return exchange.over_replicas(own, placement, fixed_order=True)

    expected = [exchange.pairwise(tf.unstack(tf.constant(value))) for value in values]
    for totals in on_each(placement, total):
        for found, wanted in zip(totals, expected, strict=True):
            assert found.dtype == wanted.dtype
            np.testing.assert_array_equal(found, wanted)


def test_rows_of_all_replicas_are_joined_in_order():
    placement = place(3)

    def rows(replica):
        return exchange.join_rows([tf.fill([2, 1], replica)], placement)

    for (found,) in on_each(placement, rows):
        np.testing.assert_array_equal(found[:, 0], [0, 0, 1, 1, 2, 2])


def test_buckets_begin_with_the_last_tensor_and_pack_small_ones_by_dtype(monkeypatch):
    monkeypatch.setattr(exchange, "BUCKET_BYTES", 400_000)
    spec = tf.TensorSpec
    tensors = [
        spec([10], "float32"),
        spec([100_000], "float32"),
        spec([5], "float64"),
        spec([20], "float32"),
        spec([100_000], "float32"),
        spec([1], "float32"),
    ]
    assert list(exchange.buckets(tensors)) == [[[5], [4]], [[3], [2], [1]], [[0]]]


def test_tensors_that_are_the_same_on_all_replicas_count_for_each():
    placement, one = place(2), tf.constant([1.0, 2.0])
    for (found,) in on_each(
        placement, lambda _: exchange.over_replicas([one], placement, fixed_order=False)
    ):
        np.testing.assert_array_equal(found, [2.0, 4.0])
