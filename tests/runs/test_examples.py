"""The examples in the docstrings of the room run."""

import doctest

import pytest

from kerasdist.runs import architecture, intervals, ownership, provenance
from kerasdist.runs.checkpoints import metadata, names, recovery

MODULES = [architecture, intervals, ownership, provenance, metadata, names, recovery]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_the_examples_run(module):
    result = doctest.testmod(module)
    assert result.attempted
    assert not result.failed
