"""Compares the gradients of a batch with those of its parts: each weight's, added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

# A small gradient may differ by this part of what a large one may: it can be a difference of these.
OF_LARGEST = 1 / 30


class Gradient(NamedTuple):
    """A gradient. That of an embedding has only the `rows` that are not zero."""

    values: np.ndarray
    rows: np.ndarray | None = None


# Of one loss, for all weights.
Gradients = Sequence[Gradient | None]


def gradient_of(found: Any) -> Gradient | None:
    """What a `tf.GradientTape` found for one weight."""
    if found is None:
        return None
    if not isinstance(found, tf.IndexedSlices):
        return Gradient(_wide(found))
    rows, places = np.unique(np.asarray(found.indices), return_inverse=True)
    given = _wide(found.values)
    values = np.zeros((len(rows), *given.shape[1:]), given.dtype)
    np.add.at(values, places.reshape(-1), given)
    return Gradient(values, rows)


def _wide(tensor: tf.Tensor) -> np.ndarray:
    return np.asarray(tf.cast(tensor, tf.float32) if tensor.dtype.size < 4 else tensor)


def gap(whole: Gradients, parts: Sequence[Gradients], shares: Sequence[float]) -> float:
    """The largest difference between the whole and the weighted sum of the parts.

    It is measured by the largest number of each weight's gradient. 0 is no difference.

    Example:
        >>> one, other = ([Gradient(np.array([x, 2.0]))] for x in (1.0, 3.0))
        >>> gap([Gradient(np.array([2.0, 2.0]))], [one, other], [0.5, 0.5])
        0.0
    """
    pairs = []
    for expected, *of_parts in zip(whole, *parts, strict=True):
        given = [g for g in (expected, *of_parts) if g is not None]
        if not given:
            continue
        total, *others = _aligned([expected, *of_parts], given)
        found = sum(share * other for share, other in zip(shares, others, strict=True))
        size = max(float(np.abs(each).max(initial=0.0)) for each in (total, found))
        pairs.append((float(np.abs(found - total).max(initial=0.0)), size))
    largest = max((size for _, size in pairs), default=0.0)
    if not largest or not np.isfinite(largest):
        return 0.0
    return max(difference / (size + OF_LARGEST * largest) for difference, size in pairs)


def _aligned(gradients: Sequence[Gradient | None], given: Sequence[Gradient]) -> list[np.ndarray]:
    """Their values in arrays of the same shape. `given` are those that are not None."""
    dense = next((g for g in given if g.rows is None), None)
    used = [g.rows for g in given if g.rows is not None]
    rows = np.unique(np.concatenate(used)) if used else np.zeros(0, "int64")
    shape = (len(rows), *given[0].values.shape[1:]) if dense is None else dense.values.shape
    found = []
    for gradient in gradients:
        if gradient is not None and gradient.rows is None:
            found.append(gradient.values)
            continue
        values = np.zeros(shape, given[0].values.dtype)
        if gradient is not None and gradient.rows is not None:
            own = gradient.rows
            values[np.searchsorted(rows, own) if dense is None else own] = gradient.values
        found.append(values)
    return found
