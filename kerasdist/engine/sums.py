"""Sums over shards and replicas, in a fixed order where bits must not depend on the devices.

The fixed order is a balanced tree over the shards: neighbours are added in pairs, and an odd one
waits for the next round. A replica whose neighbouring shards are a power of two computes a whole
branch of that tree. So the bits do not depend on how many replicas share the work.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import tensorflow as tf

from kerasdist.devices import private_tensorflow
from kerasdist.engine.compiled.random_seeds import Host
from kerasdist.engine.shards import Number

# So many numbers in a tensor, or in the state of a model, are few. Below this limit, a step takes
# as long as it has operations. Above it, the size of the tensors decides.
SMALL = 2**16
# In a fixed order, up to so many shards run without a loop. Each is a call of the same function, so
# the graph stays small, and a loop takes longer than a small shard.
MOST_CALLS = 16
# A profile finds the operations of the reduction by this name.
ALL_REDUCE = "all_reduce"

Result = TypeVar("Result")

# New values of variables that a forward pass changed, by the id of the variable.
Changed = dict[int, tf.Tensor]
# Outputs of the model (None where there is none), for metrics that need a whole batch.
Rows = Sequence[tf.Tensor | None]
# Computes one shard of a replica, by its number: the terms that add up, and the outputs.
ShardSums = tuple[list[tf.Tensor], Rows]
RunShard = Callable[[Number], ShardSums]
AddUpShards = Callable[[RunShard, ShardSums, int], ShardSums]


@dataclass(frozen=True)
class Sums:
    """The sums over all replicas, and the outputs for the whole batch if metrics need them.

    `of_replicas` has the sums of single replicas that are known here: of all of them, if they share
    memory, else of this one only.
    """

    totals: list[tf.Tensor]
    of_replicas: list[list[tf.Tensor]]
    rows: Rows

    @property
    def is_of_one_replica(self) -> bool:
        return self.of_replicas[0] is self.totals


@dataclass(frozen=True)
class Deltas:
    """How much the metrics' variables grow: one by one, and as a vector if they have one dtype."""

    values: list[tf.Tensor]
    vector: tf.Tensor | None


@dataclass(frozen=True)
class Totals:
    """The sums over all shards, taken apart.

    The gradient is None for a variable that the loss does not depend on. `gradient_vector` has all
    gradients in one vector, if the model trains as one vector. `packed` has all numbers that must
    be finite in few vectors, if the sums are packed.
    """

    loss: tf.Tensor
    gradients: list[tf.Tensor | None]
    changed: Changed
    deltas: Deltas
    gradient_vector: tf.Tensor | None = None
    packed: list[tf.Tensor] | None = None

    @property
    def checked(self) -> list[tf.Tensor]:
        """Everything that must be finite, in the order of `Terms.checked_names`."""
        present = [gradient for gradient in self.gradients if gradient is not None]
        return [self.loss, *present, *self.changed.values()]


def pairwise(values: Sequence[tf.Tensor]) -> tf.Tensor:
    """Adds neighbours in rounds: ((a + b) + (c + d)) + e for five."""
    values = list(values)
    while len(values) > 1:
        pairs = [values[i] + values[i + 1] for i in range(0, len(values) - 1, 2)]
        values = pairs + values[len(pairs) * 2 :]
    return values[0]


def split(vector: tf.Tensor, sizes: Sequence[int]) -> list[tf.Tensor]:
    """`tf.split`, which has no kernel for int64 on GPUs (TF 2.21): the vector would leave them."""
    if vector.dtype.is_floating:
        return tf.split(vector, sizes)
    ends = itertools.accumulate(sizes)
    return [vector[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def _add(left: Sequence[tf.Tensor], right: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    return [a + b for a, b in zip(left, right, strict=True)]


# Two ways to add up the shards of a replica. Both run one shard after the other.


def looped(
    run_shard: RunShard,
    first: ShardSums,
    num_shards: int,
    *,
    fixed_order: bool,
    host: Host = contextlib.nullcontext,
) -> ShardSums:
    """Adds shards 1 to num_shards - 1 to the `first`, in a loop, and keeps no outputs.

    The loop keeps the memory and the graph of one shard only. `host` is where it counts.
    """
    terms, rows = first
    if num_shards == 1:
        return terms, rows
    if fixed_order and num_shards <= MOST_CALLS:
        return _by_calls(run_shard, terms, num_shards), rows
    # The loop waits for the first shard: otherwise both are in memory at once.
    with tf.control_dependencies(terms):
        start, end = tf.identity(1), tf.constant(num_shards)
    add_up = partial(_in_a_tree, host) if fixed_order else _in_a_row
    return add_up(lambda i: run_shard(i)[0], terms, start, end, num_shards), rows


def unrolled(run_shard: RunShard, first: ShardSums, num_shards: int) -> ShardSums:
    """Adds all shards in the fixed order, and joins their outputs, which are all in memory."""
    results = [first]
    for i in range(1, num_shards):
        with tf.control_dependencies(results[-1][0]):
            results.append(run_shard(tf.constant(i)))
    totals = [pairwise(column) for column in zip(*(t for t, _ in results), strict=True)]
    columns = zip(*(r for _, r in results), strict=True)
    return totals, [None if c[0] is None else tf.concat(c, axis=0) for c in columns]


def _by_calls(run_shard: RunShard, first: list[tf.Tensor], num_shards: int) -> list[tf.Tensor]:
    """The tree, without a loop. A shard waits for the one before it: one is in memory at once."""
    branches = [first]  # The largest first: those that have no neighbour of their size yet.
    last = first
    for i in range(1, num_shards):
        with tf.control_dependencies(last):
            number = tf.identity(i)
        last, _ = run_shard(number)
        branches.append(last)
        for _ in range(_trailing_zeros(i + 1)):
            right = branches.pop()
            branches.append(_add(branches.pop(), right))
    total = branches.pop()
    while branches:
        total = _add(branches.pop(), total)
    return total


def _trailing_zeros(number: int) -> int:
    return (number & -number).bit_length() - 1


Compute = Callable[[tf.Tensor], list[tf.Tensor]]


def _in_a_row(
    compute: Compute, first: list[tf.Tensor], start: tf.Tensor, end: tf.Tensor, num_shards: int
) -> list[tf.Tensor]:
    _, *total = tf.while_loop(
        lambda i, *_: i < end,
        lambda i, *total: (i + 1, *_add(total, compute(i))),
        (start, *first),
        parallel_iterations=1,
    )
    return total


def _in_a_tree(
    host: Host,
    compute: Compute,
    first: list[tf.Tensor],
    start: tf.Tensor,
    end: tf.Tensor,
    num_shards: int,
) -> list[tf.Tensor]:
    """A binary counter of partial sums: level l holds a branch of 2**l shards.

    Adding shard i carries through as many levels as i + 1 has trailing zero bits.
    """
    num_levels, width = num_shards.bit_length(), len(first)

    def by_level(flat: Sequence[tf.Tensor]) -> list[list[tf.Tensor]]:
        return [list(flat[j * width : (j + 1) * width]) for j in range(num_levels)]

    def carry_to(
        level: int, levels: list[list[tf.Tensor]], values: list[tf.Tensor]
    ) -> list[tf.Tensor]:
        for below in range(level):
            values = _add(levels[below], values)
        return tf.nest.flatten([values if j == level else levels[j] for j in range(num_levels)])

    def body(i: tf.Tensor, *flat: tf.Tensor) -> tuple[tf.Tensor, ...]:
        levels, values = by_level(flat), compute(i)
        with host():
            count = i + 1
            lowest_bit = tf.bitwise.bitwise_and(count, -count)
            level = tf.reduce_sum(tf.cast(lowest_bit > [2**j for j in range(num_levels)], tf.int32))
        branches = [partial(carry_to, j, levels, values) for j in range(num_levels)]
        return (i + 1, *tf.switch_case(level, branches))

    levels = [first] + [[tf.zeros_like(t) for t in first] for _ in range(num_levels - 1)]
    _, *flat = tf.while_loop(
        lambda i, *_: i < end, body, (start, *tf.nest.flatten(levels)), parallel_iterations=1
    )
    full = [sums for j, sums in enumerate(by_level(flat)) if num_shards >> j & 1]
    total = full[0]
    for larger in full[1:]:
        total = _add(larger, total)
    return total


# Two ways to add up replicas without copies of the state. `exchange.py` has the others.


class Reduction(Protocol):
    """Adds up the replicas and finishes the step with the sums. Called on every replica."""

    def run(self, own: list[tf.Tensor], rows: Rows, finish: Callable[[Sums], Result]) -> Result: ...


@dataclass(frozen=True)
class OneReplica:
    """Nothing to add."""

    def run(self, own: list[tf.Tensor], rows: Rows, finish: Callable[[Sums], Result]) -> Result:
        return finish(Sums(own, [own], rows))


@dataclass(frozen=True)
class SharedMemory:
    """Adds on one device, which finishes the step for all replicas: they share the state."""

    device: str

    def run(self, own: list[tf.Tensor], rows: Rows, finish: Callable[[Sums], Result]) -> Result:
        def merge(strategy: tf.distribute.Strategy, own: list[tf.Tensor], rows: Rows) -> Result:
            local = strategy.experimental_local_results
            with tf.device(self.device):
                columns = [[tf.identity(v) for v in local(vector)] for vector in own]
                with tf.name_scope(ALL_REDUCE):
                    totals = [pairwise(column) for column in columns]
                joined = [None if t is None else tf.concat(local(t), axis=0) for t in rows]
                of_replicas = [list(row) for row in zip(*columns, strict=True)]
                return finish(Sums(totals, of_replicas, joined))

        return tf.distribute.get_replica_context().merge_call(merge, args=(own, rows))


# What Grappler, TensorFlow's optimizer of graphs, may do that rounds differently: it reorders sums
# and products, fuses operations, or takes other kernels, as the graph around them allows. The rest
# of it leaves each operation as it is: it inlines functions, and drops what is not needed.
_REWRITES = (
    "arithmetic_optimization",
    "constant_folding",
    "remapping",
    "layout_optimizer",
    "scoped_allocator_optimization",
    "auto_mixed_precision",
    "auto_mixed_precision_mkl",
    "auto_mixed_precision_onednn_bfloat16",
    "use_plugin_optimizers",
)


@contextlib.contextmanager
def fixed_graphs(deterministic: bool, is_gpu: bool) -> Iterator[None]:
    """Runs operations as they were written while `deterministic`, and restores the options after.

    Otherwise a shard in a loop would round differently from one outside of it. The options affect
    both tracing and calls, so they hold for the whole fit.
    """
    if not deterministic:
        yield
        return
    if is_gpu:
        # It cannot be switched off again (TF 2.21), so use it only where kernels need it.
        tf.config.experimental.enable_op_determinism()
    options = tf.config.optimizer
    before = options.get_experimental_options()
    options.set_experimental_options(dict.fromkeys(_REWRITES, False))
    try:
        with private_tensorflow.without_memory_optimizer():
            yield
    finally:
        options.set_experimental_options({name: before.get(name) for name in _REWRITES})
