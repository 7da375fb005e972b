"""Rows of dense, sparse and ragged tensors, compared with those of dense arrays."""

import doctest

import numpy as np
import pytest
import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.models.tensors import composites
from kerasdist.models.tensors.composites import (
    by_row,
    concatenated,
    count_rows,
    described,
    gather_rows,
    only_dense,
    rows_of,
    spec_of_rows,
)

RANDOM = np.random.default_rng(0)
DENSE = RANDOM.normal(size=(9, 4)) * (RANDOM.random((9, 4)) < 0.4)
DENSE[3] = 0
CUBE = RANDOM.normal(size=(5, 2, 3)) * (RANDOM.random((5, 2, 3)) < 0.4)
RAGGED = [[1.0], [], [2.0, 3.0], [4.0, 5.0, 6.0]]


def dense(tensor):
    return tf.sparse.to_dense(tensor).numpy() if isinstance(tensor, tf.SparseTensor) else tensor


@pytest.mark.parametrize("whole", [DENSE, CUBE], ids=["matrix", "cube"])
@pytest.mark.parametrize("kind", [tf.constant, tf.sparse.from_dense])
@pytest.mark.parametrize("way", [lambda tensor: tensor, by_row], ids=["as it is", "by row"])
def test_rows_are_those_of_the_array(whole, kind, way):
    tensor = way(kind(whole))
    for begin, end in ((0, 2), (2, 5), (3, 4), (4, 4)):
        taken = rows_of(tensor, tf.constant(begin, tf.int64), tf.constant(end, tf.int64))
        np.testing.assert_array_equal(dense(taken), whole[begin:end])
        assert int(count_rows(taken)) == end - begin
    chosen = [4, 0, 0, 3]
    np.testing.assert_array_equal(dense(gather_rows(tensor, chosen)), whole[chosen])


def test_rows_of_a_sparse_tensor_without_order():
    whole = tf.sparse.from_dense(DENSE)
    mixed = np.random.default_rng(1).permutation(len(whole.indices))
    tensor = tf.SparseTensor(
        tf.gather(whole.indices, mixed), tf.gather(whole.values, mixed), whole.dense_shape
    )
    np.testing.assert_array_equal(dense(gather_rows(tensor, [5, 1])), DENSE[[5, 1]])
    np.testing.assert_array_equal(dense(tf.sparse.reorder(rows_of(tensor, 1, 6))), DENSE[1:6])


def test_sizes_are_known_while_tracing():
    found = []

    @tf.function(input_signature=[tf.SparseTensorSpec((None, 4), tf.float64)])
    def taken(tensor):
        end = count_rows(tensor) - 1
        found.extend([rows_of(tensor, 0, end), gather_rows(tensor, tf.range(end))])
        return found[0]

    np.testing.assert_array_equal(dense(taken(tf.sparse.from_dense(DENSE))), DENSE[:-1])
    assert [tensor.shape.as_list() for tensor in found] == [[None, 4]] * 2


def test_rows_of_ragged_tensors():
    tensor = tf.ragged.constant(RAGGED)
    assert rows_of(tensor, 1, 3).to_list() == RAGGED[1:3]
    assert gather_rows(tensor, [3, 1]).to_list() == [RAGGED[3], RAGGED[1]]
    assert int(count_rows(tensor)) == 4


def test_specs_are_for_any_number_of_examples():
    assert spec_of_rows(tf.sparse.from_dense(DENSE)) == tf.SparseTensorSpec((None, 4), tf.float64)
    inner = tf.RaggedTensor.from_row_lengths(np.ones((3, 2)), [1, 2])
    spec = spec_of_rows(inner)
    assert spec == tf.RaggedTensorSpec((None, None, 2), tf.float64, 1, tf.int64)
    assert spec.is_compatible_with(tf.RaggedTensor.from_row_lengths(np.ones((3, 2)), [3]))
    assert described(spec) == "ragged float64(None, None, 2)"


def test_results_are_joined():
    parts = tf.sparse.from_dense(DENSE[:4]), tf.sparse.from_dense(DENSE[4:])
    np.testing.assert_array_equal(dense(concatenated(parts)), DENSE)
    parts = tf.ragged.constant(RAGGED[:2]), tf.ragged.constant(RAGGED[2:])
    assert concatenated(parts).to_list() == RAGGED
    with pytest.raises(KerasdistError, match="returns a ragged tensor, and several workers"):
        only_dense(parts[0])


def test_examples_of_docstrings_run():
    assert doctest.testmod(composites).failed == 0
