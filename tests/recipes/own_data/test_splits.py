"""Which files are for validation."""

import doctest
import random

import pytest

from kerasdist.recipes.own_data import bad_files, splits


def drawn(names, part, key):
    return splits.for_validation(names, splits.find_limit(names, part, key), key)


def test_the_examples_run():
    for module in (splits, bad_files):
        assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize(
    ("num", "part", "expected"),
    [(10, 0.2, 2), (3, 0.01, 1), (1, 0.5, 0), (2, 0.9, 1), (9, 0, 0), (0, 0.2, 0)],
)
def test_some_are_left_for_training(num, part, expected):
    names = [f"{i}.png" for i in range(num)]
    assert len(drawn(names, part, "0/cats")) == expected


def test_classes_and_seeds_draw_others():
    names = [f"{i}.png" for i in range(100)]
    found = {key: frozenset(drawn(names, 0.2, key)) for key in ("0/a", "0/b", "1/a")}
    assert len(set(found.values())) == 3
    assert drawn(names, 0.2, "0/a") == found["0/a"]


def test_the_files_of_earlier_versions_are_drawn():
    """Runs from before the limits were kept have no others."""
    names = [f"cats/{i}.jpg" for i in range(30)]
    assert sorted(drawn(names, 0.2, "0/cats")) == [3, 11, 12, 16, 25, 26]


def test_names_that_are_not_text_are_drawn_too():
    assert drawn(["\udcff.png", "b.png"], 0.5, "0/a") <= {0, 1}


@pytest.mark.parametrize(("before", "after"), [(30, 45), (100, 60), (1, 40), (3, 300), (40, 1)])
def test_a_file_keeps_its_part_when_others_come_or_go(before, after):
    numbers = random.Random(0)
    shares = []
    for _ in range(100):
        names = [f"cats/{numbers.getrandbits(40)}.jpg" for _ in range(max(before, after))]
        was, now = names[:before], names[:after]
        limit = splits.find_limit(was, 0.2, "0/cats")
        validation = {now[i] for i in splits.for_validation(now, limit, "0/cats")}
        trained = {*was} - {was[i] for i in splits.for_validation(was, limit, "0/cats")}
        assert not validation & trained
        shares.append(len(validation) / len(now))
    # Of the files that came, about the same part is for validation; of three, at least one was.
    assert after < 40 or 0.14 < sum(shares) / len(shares) < (0.35 if before == 3 else 0.26)


def test_a_split_becomes_plain_values_and_back():
    split = splits.Split(0.2, 3, (2**53, 0))
    assert split.to_json() == {"share": 0.2, "seed": 3, "limits": [2**53, 0]}
    assert splits.Split.from_json(split.to_json()) == split
