"""Placements on the logical CPUs of the tests, and the rows of shards."""

import logging

import numpy as np
import pytest
import tensorflow as tf

from kerasdist import KerasdistError
from kerasdist.devices.placement import Share, first_row, place
from kerasdist.devices.shard_counts import resolve_shards


def test_one_device_has_no_strategy():
    assert place(1).strategy is None
    assert place("CPU:3").names == ("CPU:3",)


@pytest.mark.parametrize("num_devices", [2, 3, 4])
def test_the_reduction_adds_up_on_every_number_of_devices(num_devices):
    """T19: HierarchicalCopyAllReduce returned 3 instead of 6 on three devices (TF 2.21)."""
    placement = place(num_devices)

    @tf.function
    def total():
        def replica():
            context = tf.distribute.get_replica_context()
            own = tf.cast(context.replica_id_in_sync_group + 1, tf.float32)
            return context.all_reduce("sum", own)

        return placement.strategy.experimental_local_results(placement.strategy.run(replica))

    expected = num_devices * (num_devices + 1) / 2
    assert [float(value) for value in total()] == [expected] * num_devices


def test_tensorflows_notes_on_strategies_are_left_out(caplog):
    place("cpu:2")
    logger = logging.getLogger("tensorflow")
    caplog.set_level(logging.INFO, "tensorflow")
    logger.addHandler(caplog.handler)
    try:
        logger.info("Using MirroredStrategy with devices ('/CPU:0',)")
        logger.info("Something else")
        place("cpu:2")
    finally:
        logger.removeHandler(caplog.handler)
    assert set(caplog.messages) == {"Something else"}


@pytest.mark.parametrize("num_shards", [1, 3, 4, 12])
@pytest.mark.parametrize("num_examples", [1, 2, 5, 16])
def test_shards_have_every_row_once_as_numbers_and_as_tensors(num_examples, num_shards):
    starts = [first_row(i, num_examples, num_shards) for i in range(num_shards + 1)]
    assert starts[0] == 0
    assert starts[-1] == num_examples
    sizes = np.diff(starts)
    assert set(sizes) <= {num_examples // num_shards, -(-num_examples // num_shards)}
    whole = tf.constant(num_examples, tf.int64)
    index = tf.range(num_shards + 1, dtype=tf.int64)
    assert first_row(index, whole, num_shards).numpy().tolist() == starts


@pytest.mark.parametrize("num_examples", [1, 2, 5, 16])
def test_the_rows_of_a_share_are_the_same_for_tensors(num_examples):
    for share in (Share(0, 2, 4), Share(2, 4, 4), Share(8, 12, 12)):
        whole = tf.constant(num_examples, tf.int64)
        rows = share.rows(whole, tf.minimum, tf.maximum)
        assert tuple(map(int, rows)) == share.rows(num_examples)


@pytest.mark.parametrize(
    ("shards", "replicas", "deterministic", "expected"),
    [
        (None, 2, False, 2),
        (None, 1, True, 4),
        (None, 3, True, 6),
        (None, 8, True, 8),
        (12, 3, True, 12),
        (np.int64(6), 2, False, 6),
        (3, 1, True, 3),
    ],
)
def test_the_number_of_shards(shards, replicas, deterministic, expected):
    assert resolve_shards(shards, replicas, deterministic) == expected


@pytest.mark.parametrize(
    ("shards", "replicas", "deterministic", "message"),
    [
        (0, 1, False, "a whole number of at least 1"),
        (True, 1, False, "a whole number of at least 1"),
        (2.0, 1, False, "a whole number of at least 1"),
        (3, 2, False, r"3 shards run on 1, 3 devices; or use `shards=4`"),
        (12, 2, True, r"a power of two, or one device.*12 shards run on 1, 3, 6, 12 devices"),
    ],
)
def test_shards_that_do_not_fit_the_devices_are_refused(shards, replicas, deterministic, message):
    with pytest.raises(KerasdistError, match=message):
        resolve_shards(shards, replicas, deterministic)
