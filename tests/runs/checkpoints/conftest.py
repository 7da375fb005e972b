"""A `Recovery` on a clock that stands still, with a disk that works or not."""

import pytest

from kerasdist.runs.checkpoints import recovery
from kerasdist.runs.checkpoints.reader import Reader
from tests.runs.checkpoints.saving import Clock


@pytest.fixture
def make(tmp_path):
    """Makes a `Recovery` on a clock that stands still, of a disk that works or not."""
    made = []

    def make(every, clock=None, files=None, **identity):
        recovered = recovery.Recovery(
            tmp_path, every=every, keep=2, identity=identity, warn=print, clock=clock or Clock()
        )
        if files is not None:
            recovered._store._files, recovered._store._reader = files, Reader(files)
        made.append(recovered)
        return recovered

    yield make
    for each in made:
        each.close()
