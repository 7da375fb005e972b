"""Sums over the shards of a replica."""

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.engine import sums

RANDOM = np.random.default_rng(3)


def terms_of(numbers):
    """A shard function that gives the numbers of a table, and its row as the output."""
    table = tf.constant(numbers)
    return lambda i: ([table[i], table[i] * 2], [table[i][tf.newaxis], None])


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7, 8, 11, 16, 17])
@pytest.mark.parametrize("most_calls", [0, 16])
def test_shards_in_fixed_order_are_added_as_a_balanced_tree(count, most_calls, monkeypatch):
    monkeypatch.setattr(sums, "MOST_CALLS", most_calls)
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


@pytest.mark.parametrize("dtype", [tf.float32, tf.int32, tf.int64])
def test_a_vector_is_split_whatever_its_dtype(dtype):
    sizes = [2, 0, 3]
    parts = sums.split(tf.range(5, dtype=dtype), sizes)
    assert [part.numpy().tolist() for part in parts] == [[0, 1], [], [2, 3, 4]]
    assert [part.shape.as_list() for part in parts] == [[2], [0], [3]]
