"""Tensors in one vector per dtype, and which of them are not finite."""

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.engine.packing import Packing

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
@pytest.mark.parametrize("size", [1, 10_000], ids=["small", "large"])
def test_flags_name_the_tensor_that_is_not_finite(bad, size):
    """A large vector has the places of its tensors computed. An empty tensor is finite."""
    tensors = [*TENSORS, tf.zeros((0, 3)), tf.zeros([size]), tf.ones([])]
    packing = Packing.of(tensors)
    for place in (0, 2, 3, 5, 6):
        wrong = list(tensors)
        values = np.array(tensors[place])
        values.reshape(-1)[-1] = bad
        wrong[place] = tf.constant(values)
        flags = packing.finite([packing.pack(tensors), packing.pack(wrong)])
        expected = [i != place for i in range(len(tensors))]
        assert flags.numpy().tolist() == [[True] * len(tensors), expected]
