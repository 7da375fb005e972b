"""What a checkpoint holds: arrays and metadata, and the metadata as plain JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

_FLOAT = "not a finite float"
_ARRAY = "array"


@dataclass(frozen=True)
class Snapshot:
    """Everything that a run needs to resume after a step.

    Attributes:
        step: The number of steps done.
        arrays: Copies the arrays, if the snapshot is saved: the state of the engine by role and
            number (`trainable/0003`, `optimizer/0000`, `ema/0001`, ...), and what callbacks
            remember (`callbacks/0/best`).
        meta: The rest. `epoch`, `step_in_epoch`, `examples`, `left_out`, `learning_rate` and `logs`
            say where the training is; `pass` and `position` where it is in the data; `history`,
            `history_epochs`, `stopped` and `best` are for callbacks and best.keras. `Recovery` adds
            `identity` (model, data and settings, which must not differ on resume) and `made_with`
            (versions and hardware, which may).

    The training makes one in `training/epochs/loop.py`, `Loop._snapshot`. There are no seeds in it:
    random numbers follow from the run's seed, the step and the shard.
    """

    step: int
    arrays: Callable[[], Mapping[str, np.ndarray]]
    meta: Mapping[str, Any]


def encoded(value: Any) -> Any:
    """Plain JSON. A metric may be NaN or infinite, which JSON cannot say.

    Example:
        >>> encoded({"loss": float("inf")})
        {'loss': {'not a finite float': 'inf'}}
        >>> decoded(encoded({"loss": float("inf")}))
        {'loss': inf}
    """
    if isinstance(value, Mapping):
        return {key: encoded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encoded(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return {_FLOAT: repr(value)}
    is_scalar = isinstance(value, np.generic) and not isinstance(value, (float, str))
    # A metric with a number for each class, or a number that a callback added to the logs.
    if isinstance(value, np.ndarray) or is_scalar:
        return {_ARRAY: [value.dtype.name, encoded(value.tolist())]}
    return value


def decoded(value: Any) -> Any:
    """The value that `encoded` was given, with lists for tuples."""
    if isinstance(value, dict):
        if set(value) == {_FLOAT}:
            return float(value[_FLOAT])
        if set(value) == {_ARRAY}:
            dtype, items = value[_ARRAY]
            return np.asarray(decoded(items), dtype)[()]
        return {key: decoded(item) for key, item in value.items()}
    return [decoded(item) for item in value] if isinstance(value, list) else value
