"""Whatever a test enables is switched off at its end."""

import pytest

import kerasdist


@pytest.fixture(autouse=True)
def disabled_at_the_end():
    yield
    kerasdist.disable()
