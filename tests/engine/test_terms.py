"""What shards add, and what empty shards count."""

import numpy as np
import tensorflow as tf

from kerasdist.engine import terms
from kerasdist.models import pure


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
