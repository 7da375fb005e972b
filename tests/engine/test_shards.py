"""Cutting a batch into shards."""

import pytest
import tensorflow as tf

from kerasdist.devices.placement import Placement
from kerasdist.engine.shards import Cut
from kerasdist.models.fields import Example

PLACEMENT = Placement(("CPU:0",), None)


def batch(num_examples):
    x = tf.range(num_examples)
    return Example((x,), x, x * 2, None)


@pytest.mark.parametrize("num_examples", [1, 3, 8, 10])
def test_shards_have_every_row_once_and_empty_ones_borrow_one(num_examples):
    cut = Cut(batch(num_examples), 4, PLACEMENT, 0)
    pieces = [cut.shard(tf.constant(i)) for i in range(4)]
    counted = [row for p in pieces for row in p.example.x.numpy()[: int(p.num_examples)]]
    assert counted == list(range(num_examples))
    assert all(len(piece.example.x) >= 1 for piece in pieces)


@pytest.mark.parametrize("num_examples", [1, 3, 8, 10])
def test_a_size_that_is_known_while_tracing_gives_the_same_shards(num_examples):
    cuts = [Cut(batch(num_examples), 4, PLACEMENT, 0, known=known) for known in (True, False)]
    for i in range(4):
        known, traced = (cut.shard(i) for cut in cuts)
        assert isinstance(known.num_examples, int)
        assert known.num_examples == int(traced.num_examples)
        assert known.num_global == int(traced.num_global) == num_examples
        assert known.y.numpy().tolist() == traced.y.numpy().tolist()


def test_one_shard_is_the_batch_itself():
    example = batch(5)
    piece = Cut(example, 1, PLACEMENT, 0).shard(0)
    assert piece.args[0] is example.args[0]
    assert piece.num_examples is None


def test_a_function_of_each_shard():
    cut = Cut(batch(4), 4, PLACEMENT, 0)
    sums = cut.each(lambda piece: int(tf.reduce_sum(piece.y)))
    assert [sums(i) for i in range(4)] == [0, 2, 4, 6]
