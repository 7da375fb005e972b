"""A clock that stands still, and a small snapshot that is saved."""

import numpy as np


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def handed_over(recovered, step, **meta):
    """Saves, and waits for it."""
    recovered.save(step, lambda: {"a": np.ones(3)}, meta)
    recovered._saver.wait()
