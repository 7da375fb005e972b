"""A script with three fits, killed a few times. `python -m tests.faults.scripts` kills more."""

import random

import pytest

from tests.faults import scripts


@pytest.mark.slow
def test_a_script_that_is_killed_prints_what_it_prints_undisturbed(tmp_path):
    undisturbed = scripts.run_undisturbed(tmp_path / "undisturbed")
    assert len(undisturbed.weights) == 3
    for seed in (0, 1):
        problems = scripts.disturb(tmp_path / str(seed), undisturbed, random.Random(seed))
        assert problems == []
