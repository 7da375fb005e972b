"""Checks that an exported file computes the same as the model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

from kerasdist.model_files.served import Runtime, Served

# As a part of the largest output. Two runtimes add up in different orders, and float32 has seven
# digits.
LIMIT = 1e-4
_UNKNOWN_LENGTH = 16


@dataclass(frozen=True)
class Difference:
    """The largest difference between two sets of outputs, and the model's largest output."""

    examples: int
    largest: float
    scale: float

    @property
    def relative(self) -> float:
        """The difference ÷ the scale; infinite if they differ and all outputs are 0."""
        if self.largest == 0:
            return 0.0
        return self.largest / self.scale if self.scale > 0 else float("inf")

    @property
    def is_small(self) -> bool:
        """Whether the outputs agree up to rounding."""
        return self.relative <= LIMIT


def compare(
    served: Served, runtime: Runtime, batches: Iterable[Sequence[np.ndarray]]
) -> Difference:
    """Runs the model and the file on the same inputs. The output that differs most counts."""
    examples = 0
    tables: list[list[float]] = []  # For each output: the largest difference, the largest value.
    for batch in batches:
        expected = [np.asarray(t) for t in served.call(*(tf.constant(array) for array in batch))]
        found = runtime(batch)
        tables = tables or [[0.0, 0.0] for _ in expected]
        if [np.shape(a) for a in expected] != [np.shape(a) for a in found]:
            return Difference(len(batch[0]), float("inf"), 1.0)
        for table, wanted, got in zip(tables, expected, found, strict=True):
            wanted, got = np.asarray(wanted, np.float64), np.asarray(got, np.float64)
            same = (wanted == got) | (np.isnan(wanted) & np.isnan(got))
            gap = np.where(same, 0.0, np.abs(np.where(same, 0.0, wanted - got)))
            # NaN on one side only is a difference.
            gap = np.where(np.isnan(gap), np.inf, gap)
            table[0] = max(table[0], float(gap.max(initial=0.0)))
            finite = np.abs(wanted[np.isfinite(wanted)])
            table[1] = max(table[1], float(finite.max(initial=0.0)))
        examples += len(batch[0])
    return max(
        (Difference(examples, gap, scale) for gap, scale in tables), key=lambda d: d.relative
    )


def random_inputs(served: Served, count: int) -> list[np.ndarray]:
    """A batch of random examples: bytes for images, 0 and 1 for other integers."""
    random = np.random.default_rng(0)
    arrays: list[np.ndarray] = []
    for spec in served.inputs:
        shape = [count, *(size or _UNKNOWN_LENGTH for size in spec.shape[1:])]
        kind = spec.dtype.as_numpy_dtype
        array: np.ndarray
        if spec.dtype.is_floating:
            array = random.normal(size=shape)
        else:
            array = random.integers(0, 256 if spec.dtype == tf.uint8 else 2, shape)
        arrays.append(array.astype(kind))
    return arrays
