"""A classifier is compared with always answering the most frequent class."""

import doctest

import pytest

from kerasdist.runs.results import guessing

FOUND = {"classes": ["a", "b"], "confusion": [[0, 4], [0, 6]], "steps": 3, "is_whole": True}


def test_the_example_runs():
    assert doctest.testmod(guessing).failed == 0


def test_the_same_as_a_guess_is_no_better():
    words = "validation accuracy 60.0% is no better than always answering 'b' (60.0%)"
    assert guessing.no_better(FOUND, 3) == words
    assert guessing.no_better({**FOUND, "is_whole": False, "is_random": True}, 3) == words


@pytest.mark.parametrize(
    "changed",
    [
        {"confusion": [[1, 3], [0, 6]]},  # better
        {"confusion": [[0, 0], [4, 6]]},  # one class only
        {"steps": 2},
        {"is_whole": False},  # the first examples, perhaps sorted
        {"confusion": [[1]]},
        {"confusion": None},
    ],
)
def test_nothing_is_said_of_a_better_model_or_without_knowledge(changed):
    assert guessing.no_better({**FOUND, **changed}, 3) is None
