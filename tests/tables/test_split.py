import numpy as np
import pytest

from kerasdist import KerasdistError
from kerasdist.tables.split import validation_rows


def test_each_class_gives_its_share():
    labels = np.repeat([0, 1, 2], [100, 10, 4])
    chosen = validation_rows(114, labels, 0.2, seed=0)
    assert np.bincount(labels[chosen]).tolist() == [20, 2, 1]


def test_it_depends_on_the_seed_alone():
    first, again, other = (validation_rows(50, None, 0.2, seed) for seed in (0, 0, 1))
    assert first.sum() == again.sum() == other.sum() == 10
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_a_class_with_one_row_is_trained_on():
    labels = np.array([0] * 10 + [1])
    assert not validation_rows(11, labels, 0.5, seed=0)[-1]


def test_no_share_gives_no_rows():
    assert not validation_rows(10, None, 0.0, seed=0).any()


def test_rare_classes_alone_still_give_some_rows():
    assert validation_rows(9, np.repeat([0, 1, 2], 3), 0.1, seed=0).sum() == 1


@pytest.mark.parametrize(("rows", "message"), [(0, "has no rows"), (1, "has 1 row")])
def test_a_table_without_rows_is_refused(rows, message):
    with pytest.raises(KerasdistError, match=message):
        validation_rows(rows, None, 0.2, seed=0)
