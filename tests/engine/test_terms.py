"""What shards add: packing into vectors, and what empty shards count."""

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.engine import terms
from kerasdist.engine.terms import Packing
from kerasdist.models import pure

TENSORS = [
    tf.constant([[1.0, 2.0], [3.0, 4.0]]),
    tf.constant(5, tf.int32),
    tf.constant(6.0),
    tf.constant([7.0], tf.float64),
]


def test_packing_has_one_vector_per_dtype_and_gives_the_tensors_back():
    packing = Packing.of(TENSORS)
    vectors = packing.pack(TENSORS)
    assert [v.dtype.name for v in vectors] == ["float32", "int32", "float64"]
    for tensor, found in zip(TENSORS, packing.unpack(vectors), strict=True):
        assert found.dtype == tensor.dtype
        np.testing.assert_array_equal(found, tensor)


def test_packing_without_the_last_tensors_has_floats_only():
    packing = Packing.of(TENSORS)
    (kept,) = packing.without_last(2, packing.pack(TENSORS))
    np.testing.assert_array_equal(kept, [1, 2, 3, 4])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_flags_name_the_tensor_that_is_not_finite(bad):
    packing = Packing.of(TENSORS)
    wrong = [*TENSORS[:2], tf.constant(bad, tf.float32), TENSORS[3]]
    flags = packing.finite([packing.pack(TENSORS), packing.pack(wrong)])
    assert flags.numpy().tolist() == [[True] * 4, [True, True, False, True]]


def test_an_empty_shard_counts_nothing_even_if_its_value_is_not_finite():
    value = tf.constant([np.nan, 1.0])
    empty, some = (pure.Shard(tf.constant(n), tf.constant(3)) for n in (0, 1))
    assert terms.if_any(empty, value).numpy().tolist() == [0, 0]
    assert terms.if_any(some, value).numpy()[1] == 1
    np.testing.assert_allclose(terms.weighted(some, tf.constant(3.0)), 1.0)


def test_half_precision_is_summed_in_float32():
    assert terms.wide(tf.constant(1.0, tf.bfloat16)).dtype == tf.float32
    assert terms.wide(tf.constant(1.0, tf.float64)).dtype == tf.float64
    assert terms.wide(tf.constant(1)).dtype == tf.int32
