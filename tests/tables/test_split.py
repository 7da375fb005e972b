import dataclasses

import numpy as np
import pytest

from kerasdist import KerasdistError
from kerasdist.tables.reading.builders import Names, words_in
from kerasdist.tables.reading.raw import Raw
from kerasdist.tables.schema import Column, Target
from kerasdist.tables.split import find_split, row_keys, validation_rows

COLUMNS = (Column("x", "number"), Column("town", "category"), Column("note", "text"))


def rows(labels, values=None, seed=0):
    """Rows with a number, a category and a text each."""
    random = np.random.default_rng(seed)
    count = len(labels)
    x = random.normal(size=count).astype(np.float32) if values is None else values
    return Raw(
        count,
        {"x": x, "town": Names(random.integers(-1, 2, count).astype(np.int32), ("Bern", "Genf"))},
        words_in([[" ".join(random.choice(["a", "b", "c"], 3)) for _ in range(count)]]),
        np.array(labels),
    )


def target_of(labels):
    return Target("y", "classification", classes=tuple(map(str, range(max(labels) + 1))))


def chosen(labels, share=0.2, seed=0, raw=None):
    raw, target = raw or rows(labels), target_of(labels)
    return validation_rows(raw, COLUMNS, target, find_split(raw, COLUMNS, target, share, seed))


def test_each_class_gives_its_share():
    labels = np.repeat([0, 1, 2], [100, 10, 4])
    assert np.bincount(labels[chosen(labels)]).tolist() == [20, 2, 1]


def test_numbers_give_their_share():
    raw, target = rows(np.linspace(0, 1, 1000).astype(np.float32)), Target("y", "regression")
    split = find_split(raw, COLUMNS, target, 0.2, seed=0)
    assert validation_rows(raw, COLUMNS, target, split).sum() == 200


def test_it_depends_on_the_seed():
    first, again, other = (chosen([0] * 50, seed=seed) for seed in (0, 0, 1))
    assert first.sum() == again.sum() == other.sum() == 10
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_a_row_keeps_its_part_when_the_table_grows_or_has_another_order():
    """So `evaluate` on a table that has grown does not count rows of the training."""
    labels = np.arange(1200) % 3
    all_rows, target = rows(labels), target_of(labels)
    first = all_rows.take(np.arange(1200) < 1000)
    split = find_split(first, COLUMNS, target, 0.2, seed=0)
    before = validation_rows(first, COLUMNS, target, split)
    after = validation_rows(all_rows, COLUMNS, target, split)
    np.testing.assert_array_equal(after[:1000], before)
    assert 20 <= after[1000:].sum() <= 60
    order = np.random.default_rng(1).permutation(1200)
    keys = row_keys(dataclasses.replace(all_rows, words=None), COLUMNS, 0)
    x, town = (all_rows.columns[name] for name in ("x", "town"))
    mixed = Raw(1200, {"x": x[order], "town": town.take(order)}, None, labels[order])
    np.testing.assert_array_equal(row_keys(mixed, COLUMNS, 0), keys[order])


def test_equal_rows_are_divided_too():
    labels = [0] * 100
    raw = Raw(100, {"x": np.ones(100, np.float32)}, None, np.array(labels))
    assert chosen(labels, raw=raw).sum() == 20
    assert len(np.unique(row_keys(raw, COLUMNS, 0))) == 100


def test_each_value_counts():
    random = np.random.default_rng(0)
    values = random.normal(size=4).astype(np.float32)
    values[1] = np.nan
    texts = words_in([["a b", "b a", "a b c", ""]])
    names = Names(np.array([0, 1, -1, 0], np.int32), ("Bern", "Genf"))
    for columns, words in (({"x": values}, None), ({"town": names}, None), ({}, texts)):
        keys = row_keys(Raw(4, columns, words, np.zeros(4, np.int64)), COLUMNS, 0)
        assert len(np.unique(keys)) == 4


def test_the_order_of_names_does_not_count():
    one = Raw(
        2, {"town": Names(np.array([0, 1]), ("Bern", "Genf"))}, words_in([["a b", "c"]]), None
    )
    two = Raw(
        2, {"town": Names(np.array([1, 0]), ("Genf", "Bern"))}, words_in([["a b", "c"]]), None
    )
    np.testing.assert_array_equal(row_keys(one, COLUMNS, 0), row_keys(two, COLUMNS, 0))


def test_a_class_with_one_row_is_trained_on():
    assert not chosen([0] * 10 + [1], share=0.5)[-1]


def test_no_share_gives_no_rows():
    assert not chosen([0] * 10, share=0.0).any()


def test_rare_classes_alone_still_give_some_rows():
    assert chosen(np.repeat([0, 1, 2], 3), share=0.1).sum() == 1


@pytest.mark.parametrize(("count", "message"), [(0, "has no rows"), (1, "has 1 row")])
def test_a_table_without_rows_is_refused(count, message):
    with pytest.raises(KerasdistError, match=message):
        find_split(rows([0] * count), COLUMNS, target_of([0]), 0.2, seed=0)
