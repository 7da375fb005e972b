"""The examples in the docstrings of the room run."""

import doctest

import pytest

from kerasdist.runs import architecture, intervals, ownership, provenance
from kerasdist.runs.checkpoints import contents, names, recovery

MODULES = [architecture, intervals, ownership, provenance, contents, names, recovery]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_examples_run(module):
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
