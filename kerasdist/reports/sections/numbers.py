"""Reads rows of numbers from a file that may hold anything."""

from __future__ import annotations

from typing import Any

from kerasdist.runs.metrics_log import finite


def rows_of(value: Any, width: int) -> list[tuple[float, ...]]:
    """The rows of `width` finite numbers in a list; other items are left out.

    Example:
        >>> rows_of([[1, 2.5], ["x", 1], [1], None], 2), rows_of("text", 2)
        ([(1.0, 2.5)], [])
    """
    rows = []
    for item in value if isinstance(value, list) else []:
        numbers = [finite(number) for number in item] if isinstance(item, list) else []
        known = [number for number in numbers if number is not None]
        if len(numbers) == width == len(known):
            rows.append(tuple(known))
    return rows


def numbers_of(value: Any) -> list[float]:
    """The finite numbers in a list; other items are left out.

    Example:
        >>> numbers_of([1, 0.5, "x", None]), numbers_of(3)
        ([1.0, 0.5], [])
    """
    found = [finite(item) for item in value] if isinstance(value, list) else []
    return [number for number in found if number is not None]
