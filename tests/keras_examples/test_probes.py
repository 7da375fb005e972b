"""The probes of the census are right programs: each runs with plain Keras."""

import contextlib

import pytest

import kerasdist
from tests.keras_examples import probes

# Keras 3.15.1 with TensorFlow 2.21 cannot run these, so kerasdist is not asked for more.
KERAS_REFUSES = {"KERAS_BACKEND set to another backend"}


@pytest.mark.slow
@pytest.mark.parametrize("feature", sorted(set(probes.PROBES) - KERAS_REFUSES))
@pytest.mark.filterwarnings("ignore")
def test_keras_runs_the_probe(feature, monkeypatch):
    monkeypatch.setattr(
        kerasdist, "enable", lambda **options: contextlib.nullcontext(), raising=False
    )
    assert probes.failure(feature) == ""
