"""Which files are for validation."""

import doctest

import pytest

from kerasdist.recipes.own_data import bad_files, splits


def test_the_examples_run():
    for module in (splits, bad_files):
        assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("num", "part", "expected"), [(10, 0.2, 2), (3, 0.01, 1), (1, 0.5, 0), (2, 0.9, 1), (9, 0, 0)]
)
def test_some_are_left_for_training(num, part, expected):
    names = [f"{i}.png" for i in range(num)]
    assert len(splits.for_validation(names, part, "0/cats")) == expected


def test_classes_and_seeds_draw_others():
    names = [f"{i}.png" for i in range(100)]
    drawn = {
        key: frozenset(splits.for_validation(names, 0.2, key)) for key in ("0/a", "0/b", "1/a")
    }
    assert len(set(drawn.values())) == 3
    assert splits.for_validation(names, 0.2, "0/a") == drawn["0/a"]


def test_names_that_are_not_text_are_drawn_too():
    assert splits.for_validation(["\udcff.png", "b.png"], 0.5, "0/a") <= {0, 1}
