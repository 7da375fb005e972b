"""The learning rate that logs show."""

from __future__ import annotations

from typing import Any

import keras


def learning_rate(optimizer: keras.optimizers.Optimizer) -> Any:
    """The rate of an optimizer. A `MultiOptimizer` has none: it is that of its first optimizer."""
    several = getattr(optimizer, "optimizers", None)
    return (several[0] if several else optimizer).learning_rate
