"""What a checkpoint holds: arrays and metadata, and the metadata as plain JSON."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from kerasdist.runs.checkpoints.manifests import EXTENSION_DTYPES, PLAIN_DTYPES

_FLOAT = "not a finite float"
_ARRAY = "array"
_MOST_TEXT = 1000
# As numbers of JSON. Complex ones are not.
_DTYPES = {name for name in PLAIN_DTYPES + EXTENSION_DTYPES if not name.startswith("complex")}


@dataclass(frozen=True)
class Snapshot:
    """Everything that a run needs to resume after a step.

    Attributes:
        step: The number of steps done.
        arrays: Copies the arrays, if the snapshot is saved: the state of the engine by role and
            number (`trainable/0003`, `optimizer/0000`, `ema/0001`, ...), and what callbacks
            remember (`callbacks/EarlyStopping(val_loss)/0/best`).
        meta: The rest. `epoch`, `step_in_epoch`, `examples`, `left_out`, `learning_rate` and `logs`
            say where the training is; `pass` and `position` where it is in the data; `history`,
            `history_epochs`, `stopped`, `stopped_early` and `best` are for callbacks and
            best.keras. `Recovery` adds `identity` (model, data and settings, which must not differ
            on resume) and `made_with` (versions and hardware, which may).

    The training makes one in `training/epochs/loop.py`, `Loop._snapshot`. There are no seeds in it:
    random numbers follow from the run's seed, the step and the shard.
    """

    step: int
    arrays: Callable[[], Mapping[str, np.ndarray]]
    meta: Mapping[str, Any]


def encoded(value: Any, tell_text: Callable[[str], None] = lambda kind: None) -> Any:
    """Plain JSON. A metric may be NaN or infinite, which JSON cannot say.

    Callbacks may add anything to the logs. What no checkpoint can hold becomes text, and
    `tell_text` is called with the name of its class.

    Example:
        >>> encoded({"loss": float("inf")})
        {'loss': {'not a finite float': 'inf'}}
        >>> decoded(encoded({"loss": float("inf")}))
        {'loss': inf}
    """
    if isinstance(value, Mapping) and _can_be_keys(value):
        return {key: encoded(item, tell_text) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [encoded(item, tell_text) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else {_FLOAT: repr(float(value))}
    # A metric with a number for each class, or a number or tensor that a callback logged.
    with contextlib.suppress(Exception):  # Whatever its class does, the checkpoint is saved.
        array = getattr(value, "numpy", lambda: value)()
        if isinstance(array, (np.ndarray, np.generic)) and array.dtype.name in _DTYPES:
            return {_ARRAY: [array.dtype.name, encoded(array.tolist())]}
    tell_text(type(value).__name__)
    with contextlib.suppress(Exception):
        return str(value)[:_MOST_TEXT]
    return type(value).__name__


def _can_be_keys(value: Mapping[Any, Any]) -> bool:
    # A mapping with one of these keys alone is how `encoded` writes a float or an array.
    return all(isinstance(key, str) for key in value) and set(value) not in ({_FLOAT}, {_ARRAY})


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
