"""What each worker reads: the rows of its shards."""

import numpy as np
import pytest
import tensorflow as tf

from kerasdist import Sequences
from kerasdist.data.preparation import part_of
from kerasdist.data.streams import open_stream
from kerasdist.devices.placement import Placement, Share
from kerasdist.engine.shards import Cut
from kerasdist.models.fields import Example

SHARES = [(n, shards, workers) for n in (1, 2, 3, 5, 16) for shards, workers in ((4, 2), (12, 3))]


def shares(shards, workers):
    count = shards // workers
    return [Share(i * count, (i + 1) * count, shards) for i in range(workers)]


@pytest.mark.parametrize(("num_examples", "shards", "num_workers"), SHARES)
def test_a_part_has_the_rows_of_its_shards(num_examples, shards, num_workers):
    """Also those that an empty shard borrows: the cut of a part is the cut of the whole."""
    x = tf.range(num_examples)
    placement = Placement(("CPU:0",), None)
    whole = Cut(Example((x,), x, x, None), shards, placement, 0)
    seen = []
    for share in shares(shards, num_workers):
        (part, _), span = part_of(share, (x, x), False)
        first, end = share.rows(num_examples)
        assert part.numpy().tolist() == list(range(first, end))
        cut = Cut(Example((part,), part, part, None), shards, placement, 0, span)
        for i in range(share.first, share.end):
            piece, expected = (each.shard(tf.constant(i)) for each in (cut, whole))
            rows = piece.example.x.numpy().tolist()
            assert int(piece.index) == i
            assert rows == expected.example.x.numpy().tolist()
            assert int(piece.num_examples) == int(expected.num_examples)
            assert int(piece.num_global) == num_examples
            seen += rows[: int(piece.num_examples)]
    assert seen == list(range(num_examples))


class Source:
    """Random access that remembers what was read."""

    def __init__(self, num_examples):
        self.read = []
        self._num_examples = num_examples

    def __len__(self):
        return self._num_examples

    def __getitem__(self, i):
        self.read.append(i)
        return np.float32(i), np.float32(i)


def batches(stream):
    found = [tf.nest.map_structure(np.asarray, batch) for batch in stream.open(0, 0)]
    stream.close()
    return found


@pytest.mark.parametrize("shuffle", [False, True])
def test_random_access_is_read_for_the_part_alone(shuffle):
    whole = batches(open_stream(Source(10), batch_size=4, shuffle=shuffle))
    for share in shares(4, 2):
        source = Source(10)
        stream = open_stream(source, batch_size=4, shuffle=shuffle)
        assert stream.take_share(share)
        parts = batches(stream)
        assert len(parts) == len(whole) == 3
        for (x, _), (all_x, _) in zip(parts, whole, strict=True):
            assert x.tolist() == all_x[slice(*share.rows(len(all_x)))].tolist()
        assert len(source.read) == sum(len(x) for x, _ in parts)


@pytest.mark.parametrize("shuffle", [False, True])
def test_sequences_of_a_part_are_as_long_as_the_batch(shuffle):
    clips = [np.full((1 + i % 5, 2), i, "float32") for i in range(10)]
    data = Sequences({"frames": clips, "label": np.arange(10)})
    whole = batches(open_stream(data, batch_size=4, shuffle=shuffle))
    for share in shares(4, 2):
        stream = open_stream(data, batch_size=4, shuffle=shuffle)
        assert stream.take_share(share)
        for part, batch in zip(batches(stream), whole, strict=True):
            rows = slice(*share.rows(len(batch["label"])))
            assert part["frames"].tolist() == batch["frames"][rows].tolist()


def test_a_stream_that_cannot_be_indexed_is_read_whole():
    stream = open_stream(tf.data.Dataset.range(10).batch(4))
    assert not stream.take_share(Share(0, 2, 4))
    assert len(batches(stream)[0]) == 4
