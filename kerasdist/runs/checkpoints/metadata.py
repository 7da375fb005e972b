"""Converts the metadata of a checkpoint to plain JSON and back, with NaN and infinity."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_FLOAT = "not a finite float"


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
    return value


def decoded(value: Any) -> Any:
    """The value that `encoded` was given, with lists for tuples."""
    if isinstance(value, dict):
        if set(value) == {_FLOAT}:
            return float(value[_FLOAT])
        return {key: decoded(item) for key, item in value.items()}
    return [decoded(item) for item in value] if isinstance(value, list) else value
