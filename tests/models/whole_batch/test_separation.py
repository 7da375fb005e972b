"""What of a model's outputs can be put together from parts of a batch."""

import tracemalloc

import numpy as np
import pytest

from kerasdist.models.whole_batch import separation

OUTPUT = np.random.default_rng(0).normal(size=(64, 20_000)).astype("float32")


@pytest.mark.parametrize(
    ("whole", "again", "parts", "expected"),
    [
        (OUTPUT, OUTPUT, [OUTPUT[:40], OUTPUT[40:]], True),
        (OUTPUT, OUTPUT, [OUTPUT[:40], OUTPUT[40:] * 1.01], False),
        (OUTPUT, OUTPUT, [OUTPUT[:40], OUTPUT[41:]], False),
        (OUTPUT, OUTPUT, [OUTPUT[:40], OUTPUT[40:, :5]], False),
        # What depends on chance cannot be compared.
        (OUTPUT, OUTPUT * 2, [OUTPUT[:40], OUTPUT[40:] * 3], True),
        (np.float32(2), np.float32(2), [np.float32(2)], False),
        (np.array([np.nan, 1]), np.array([np.nan, 1]), [np.array([np.nan]), np.ones(1)], True),
        (np.array(["a", "b"]), np.array(["a", "b"]), [np.array(["a"]), np.array(["c"])], False),
    ],
)
def test_rows_of_parts_make_up_the_whole(whole, again, parts, expected):
    assert separation._is_joined(whole, again, parts, 1e-4) is expected


def test_large_outputs_are_compared_without_copies_of_them():
    tracemalloc.start()
    assert separation._is_joined(OUTPUT, OUTPUT, [OUTPUT[:40], OUTPUT[40:]], 1e-4)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < OUTPUT.nbytes / 2
