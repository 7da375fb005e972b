"""Sums over shards and replicas: packed into few vectors, and in a fixed order where bits matter.

The fixed order is a balanced tree over the shards: neighbours are added pairwise, an odd one waits
for the next round. A replica with a power of two of neighbouring shards computes one whole branch
of that tree, so the bits do not depend on how many replicas share the work.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import tensorflow as tf

# Elements of a tensor, or of a model's state. Below, the number of operations is what takes time;
# above, their size.
SMALL = 2**16
# The name under which operations of the reduction are found in a trace.
ALL_REDUCE = "all_reduce"


def pairwise(values: Sequence) -> tf.Tensor:
    """Adds neighbours in rounds: ((a + b) + (c + d)) + e for five."""
    values = list(values)
    while len(values) > 1:
        pairs = [values[i] + values[i + 1] for i in range(0, len(values) - 1, 2)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def join(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


@dataclass(frozen=True)
class Packing:
    """Puts tensors of known shapes into one vector a dtype, and takes them out again."""

    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]

    @classmethod
    def of(cls, tensors: Sequence[tf.Tensor]) -> Packing:
        return cls(
            tuple(tuple(t.shape.as_list()) for t in tensors), tuple(t.dtype.name for t in tensors)
        )

    @property
    def vector_dtypes(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.dtypes))

    @property
    def num_elements(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes)

    def without_last(self, count: int, vectors: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Of the vectors of floats, what belongs to all but the last `count` tensors."""
        end = len(self.shapes) - count
        kept = []
        for dtype, vector in zip(self.vector_dtypes, vectors, strict=True):
            own = [s for s, d in zip(self.shapes[:end], self.dtypes, strict=False) if d == dtype]
            size = sum(int(np.prod(shape)) for shape in own)
            if vector.dtype.is_floating and size:
                kept.append(vector[:size])
        return kept

    def finite(self, rows: Sequence[Sequence[tf.Tensor]]) -> tf.Tensor:
        """`[rows, tensors]`: which tensors are finite, of several packings' vectors.

        In few operations, because a loop passes over all of them even where they are not wanted.
        """
        sizes = np.array([int(np.prod(shape)) for shape in self.shapes])
        flags, numbers = [], []
        for dtype, column in zip(self.vector_dtypes, zip(*rows, strict=True), strict=True):
            own = np.array([i for i, d in enumerate(self.dtypes) if d == dtype])
            owners = np.repeat(np.arange(len(own)), sizes[own])
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
        sizes = [int(np.prod(shape)) for shape in self.shapes]
        pieces = {}
        for dtype, vector in zip(self.vector_dtypes, vectors, strict=True):
            own = [n for n, d in zip(sizes, self.dtypes, strict=True) if d == dtype]
            pieces[dtype] = iter(tf.split(vector, own))
        return [
            tf.reshape(next(pieces[dtype]), shape)
            for dtype, shape in zip(self.dtypes, self.shapes, strict=True)
        ]


def _add(left: Sequence[tf.Tensor], right: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [a + b for a, b in zip(left, right, strict=True)]


def over_shards(
    compute: Callable[[tf.Tensor], list[tf.Tensor]],
    first: list[tf.Tensor],
    num_shards: int,
    *,
    fixed_order: bool,
) -> list[tf.Tensor]:
    """Adds `compute(i)` for i in 1..num_shards-1 to `first`, one shard after the other.

    A loop, not an unrolled sum: it keeps the memory of one shard and the graph of one shard.
    """
    if num_shards == 1:
        return first
    # The loop waits for the first shard: otherwise both are in memory at once.
    with tf.control_dependencies(first):
        start, end = tf.identity(1), tf.constant(num_shards)
    if not fixed_order:
        _, *total = tf.while_loop(
            lambda i, *_: i < end,
            lambda i, *total: (i + 1, *_add(total, compute(i))),
            (start, *first),
            parallel_iterations=1,
        )
        return total
    # A binary counter of partial sums: level l holds a branch of 2**l shards. Adding shard i
    # carries through as many levels as i + 1 has trailing zero bits.
    num_levels, width = num_shards.bit_length(), len(first)
    levels = [first] + [[tf.zeros_like(t) for t in first] for _ in range(num_levels - 1)]

    def carry_to(level: int, levels: list[list[tf.Tensor]], values: list[tf.Tensor]):
        for below in range(level):
            values = _add(levels[below], values)
        return tf.nest.flatten([values if j == level else levels[j] for j in range(num_levels)])

    def body(i, *flat):
        levels = [list(flat[j * width : (j + 1) * width]) for j in range(num_levels)]
        values = compute(i)
        count = i + 1
        lowest_bit = tf.bitwise.bitwise_and(count, -count)
        level = tf.reduce_sum(tf.cast(lowest_bit > [2**j for j in range(num_levels)], tf.int32))
        branches = [
            lambda j=j, values=values: carry_to(j, levels, values) for j in range(num_levels)
        ]
        return (i + 1, *tf.switch_case(level, branches))

    _, *flat = tf.while_loop(
        lambda i, *_: i < end, body, (start, *tf.nest.flatten(levels)), parallel_iterations=1
    )
    levels = [flat[j * width : (j + 1) * width] for j in range(num_levels)]
    total = None
    for level in range(num_levels):
        if num_shards >> level & 1:
            total = levels[level] if total is None else _add(levels[level], total)
    return total


def over_replicas(
    vectors: list[tf.Tensor], num_replicas: int, *, fixed_order: bool
) -> list[tf.Tensor]:
    """The sum over all replicas, the same on each of them. Called inside `strategy.run`."""
    if num_replicas == 1:
        return vectors
    context = tf.distribute.get_replica_context()
    with tf.name_scope(ALL_REDUCE):
        if not fixed_order:
            return context.all_reduce(tf.distribute.ReduceOp.SUM, vectors)
        gathered = context.all_gather([v[tf.newaxis] for v in vectors], axis=0)
        return [pairwise([g[i] for i in range(num_replicas)]) for g in gathered]


def of_all(columns: Sequence[Sequence[tf.Tensor]]) -> list[tf.Tensor]:
    """The sums of vectors of which all replicas' values are at hand, in the fixed order."""
    with tf.name_scope(ALL_REDUCE):
        return [pairwise(column) for column in columns]


@contextlib.contextmanager
def fixed_graphs(deterministic: bool, is_gpu: bool) -> Iterator[None]:
    """Runs graphs as they were written while `deterministic`; puts the option back.

    Grappler reorders additions and fuses operations as the graph around them allows, so that a
    shard in a loop rounds differently from one that is not. Traced functions and calls alike take
    the option, so it holds for the whole fit.
    """
    if not deterministic:
        yield
        return
    if is_gpu:
        # Has no off switch (TF 2.21), so only where kernels need it.
        tf.config.experimental.enable_op_determinism()
    option = "disable_meta_optimizer"
    before = tf.config.optimizer.get_experimental_options().get(option)
    tf.config.optimizer.set_experimental_options({option: True})
    try:
        yield
    finally:
        tf.config.optimizer.set_experimental_options({option: before})
