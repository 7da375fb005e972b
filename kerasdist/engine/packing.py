"""Tensors in one vector per dtype: one operation then does what each tensor would need one for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.engine.sums import SMALL, split


@dataclass(frozen=True)
class Packing:
    """Puts tensors of known shapes into one vector per dtype, and takes them out again."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, tensors: Sequence[tf.Tensor]) -> Packing:
        return cls(
            tuple(tuple(t.shape.as_list()) for t in tensors), tuple(t.dtype.name for t in tensors)
        )

    @property
    def sizes(self) -> list[int]:
        return [math.prod(shape) for shape in self.shapes]

    @property
    def vector_dtypes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.dtypes))

    def without_last(self, count: int, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """The vectors of floats, without the numbers of the last `count` tensors."""
        end = len(self.shapes) - count
        kept = []
        for dtype, vector in zip(self.vector_dtypes, vectors, strict=True):
            size = sum(n for n, d in zip(self.sizes[:end], self.dtypes, strict=False) if d == dtype)
            if vector.dtype.is_floating and size:
                kept.append(vector[:size])
        return kept

    def finite(self, rows: Sequence[Sequence[tf.Tensor]]) -> tf.Tensor:
        """`[rows, tensors]`: which tensors are finite. Each row has the vectors of one packing.

        It takes few operations: a loop spends time on each of them, even if nobody wants the flags.
        """
        flags, numbers = [], []
        for dtype, column in zip(self.vector_dtypes, zip(*rows, strict=True), strict=True):
            own = np.array([i for i, d in enumerate(self.dtypes) if d == dtype])
            owners = _owners([self.sizes[i] for i in own])
            table = tf.stack(column, axis=1)
            is_float = table.dtype.is_floating
            ok = tf.math.is_finite(table) if is_float else tf.ones_like(table, tf.bool)
            flags.append(tf.math.unsorted_segment_min(tf.cast(ok, tf.int32), owners, len(own)))
            numbers.append(own)
        joined = tf.gather(tf.concat(flags, axis=0), np.argsort(np.concatenate(numbers)))
        return tf.transpose(joined > 0)

    def pack(self, tensors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        return [
            tf.concat([tf.reshape(t, [-1]) for t in tensors if t.dtype.name == dtype], axis=0)
            for dtype in self.vector_dtypes
        ]

    def unpack(self, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        pieces = {}
        for dtype, vector in zip(self.vector_dtypes, vectors, strict=True):
            own = [n for n, d in zip(self.sizes, self.dtypes, strict=True) if d == dtype]
            # `tf.split` has no kernel for whole numbers on GPUs (TF 2.21).
            pieces[dtype] = iter((tf.split if vector.dtype.is_floating else split)(vector, own))
        return [
            tf.reshape(next(pieces[dtype]), shape)
            for dtype, shape in zip(self.dtypes, self.shapes, strict=True)
        ]


def _owners(sizes: Sequence[int]) -> Any:
    """For each number of a vector, the number of the tensor that it belongs to."""
    if sum(sizes) <= SMALL:
        return np.repeat(np.arange(len(sizes)), sizes)
    # As a constant it would be as large as the vector, in a graph that hardly ever needs it.
    return tf.searchsorted(np.cumsum(sizes), tf.range(sum(sizes), dtype=tf.int64), side="right")
