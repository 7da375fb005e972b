"""Sums over replicas that have no memory in common: each of them gets the sums.

Devices of one process add up with plain copies between them, not with NCCL: TensorFlow cancels
copies if a device fails, where NCCL would wait for ever (TF 2.21), and the order of additions is
fixed. Each device adds up a part of a large tensor and sends its sum to the others, so N devices
move 2 (N - 1) times the size of the tensor, and no device more than another.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import tensorflow as tf

from kerasdist.devices import private_tensorflow
from kerasdist.devices.placement import Placement
from kerasdist.engine.settings import Settings
from kerasdist.engine.shards import Cut, Piece
from kerasdist.engine.sums import (
    ALL_REDUCE,
    SMALL,
    OneReplica,
    Reduction,
    Rows,
    SharedMemory,
    Sums,
    pairwise,
    split,
)

# Gradients are added up in groups of about this many bytes, from the last layer to the first: the
# devices exchange a group while they still compute the gradients of earlier layers.
BUCKET_BYTES = 32 * 2**20

Result = TypeVar("Result")
# A tensor on each device.
Column = Sequence[tf.Tensor]


@dataclass(frozen=True)
class Copies:
    """Gives the sums to every replica. Each finishes the step on its own copy of the state."""

    placement: Placement
    fixed_order: bool

    def run(self, own: list[tf.Tensor], rows: Rows, finish: Callable[[Sums], Result]) -> Result:
        with tf.name_scope(ALL_REDUCE):
            totals = over_replicas(own, self.placement, fixed_order=self.fixed_order)
        present = [t for t in rows if t is not None]
        joined = iter(join_rows(present, self.placement)) if present else iter(())
        return finish(Sums(totals, [own], [None if t is None else next(joined) for t in rows]))


def reduction(placement: Placement, *, fixed_order: bool) -> Reduction:
    """The way to add up that suits the devices."""
    if placement.num_replicas == 1:
        return OneReplica()
    if placement.shares_memory:
        return SharedMemory(placement.names[0])
    return Copies(placement, fixed_order)


def over_replicas(
    tensors: list[tf.Tensor], placement: Placement, *, fixed_order: bool
) -> list[tf.Tensor]:
    """The sums over all replicas, the same on each of them. Called inside `strategy.run`."""
    if placement.num_replicas == 1:
        return tensors
    if placement.workers is None:
        return _exchanged(tensors, placement, _in_process)
    if fixed_order:
        stacked = join_rows([t[tf.newaxis] for t in tensors], placement)
        # `tf.unstack` has no kernel for int64 on GPUs (TF 2.21).
        count = placement.num_replicas
        return [pairwise([t[i] for i in range(count)]) for t in stacked]
    return _across_workers(tensors, _add_up)


def join_rows(tensors: list[tf.Tensor], placement: Placement) -> list[tf.Tensor]:
    """The rows of all replicas, one after the other, on each of them. Inside `strategy.run`."""
    if placement.num_replicas == 1:
        return tensors
    if placement.workers is None:
        return _exchanged(tensors, placement, _joined)
    return _across_workers(tensors, private_tensorflow.gather_rows)


def synchronization(
    settings: Settings, placement: Placement
) -> tuple[Callable[[list[tf.Tensor]], list[tf.Tensor]] | None, bool]:
    """How layers add up their statistics over the replicas, and whether all BatchNorms do so."""
    if not settings.synchronizes or placement.num_replicas == 1:
        return None, False
    add_up = partial(over_replicas, placement=placement, fixed_order=settings.deterministic)
    return add_up, settings.synchronizes_all


def of_denominators(
    cut: Cut, of_shard: Callable[[Piece], tf.Tensor], count: int, placement: Placement
) -> list[tf.Tensor]:
    """The sums over the global batch of the `count` denominators that `of_shard` computes."""
    if cut.per_replica == 1:
        table = of_shard(cut.shard(0))[tf.newaxis]
    else:
        table = tf.map_fn(
            cut.each(of_shard),
            tf.range(cut.per_replica),
            fn_output_signature=tf.float64,
            parallel_iterations=1,
        )
    (table,) = join_rows([table], placement)
    # The table is the same on every replica and for every number of them, and so are its sums.
    return tf.unstack(tf.reduce_sum(table, axis=0), count)


# Between the devices of one process.


def _exchanged(
    tensors: list[tf.Tensor],
    placement: Placement,
    exchange: Callable[[list[Column], Sequence[str]], list[Column]],
) -> list[tf.Tensor]:
    """Calls `exchange` once with the tensors of all replicas. Each replica gets its result."""
    devices = placement.devices

    def merge(strategy: tf.distribute.Strategy, *given: tf.Tensor) -> list[tf.Tensor]:
        columns = [_column(strategy, each, len(devices)) for each in given]
        results = exchange(columns, devices)
        of_replica = strategy.experimental_distribute_values_from_function
        return [
            of_replica(lambda context, c=column: c[context.replica_id_in_sync_group])
            for column in results
        ]

    return tf.distribute.get_replica_context().merge_call(merge, args=tuple(tensors))


def _column(strategy: tf.distribute.Strategy, value: tf.Tensor, count: int) -> Column:
    found = strategy.experimental_local_results(value)
    return found if len(found) == count else found * count  # The same tensor on all replicas.


def _joined(columns: list[Column], devices: Sequence[str]) -> list[Column]:
    results: list[Column] = []
    for column in columns:
        joined = []
        for device in devices:
            with tf.device(device):
                joined.append(tf.concat(column, axis=0))
        results.append(joined)
    return results


def _in_process(columns: list[Column], devices: Sequence[str]) -> list[Column]:
    results: dict[int, Column] = {}
    done: list[list[int]] = []
    for number, bucket in enumerate(buckets([c[0] for c in columns])):
        # Only two buckets are on their way at a time: more would take memory.
        earlier = [results[i] for i in done[number - 2]] if number >= 2 else []
        for numbers in bucket:
            waiting = [_after(columns[i], earlier, devices) for i in numbers]
            found = _sum_of_pack(waiting, devices, number % len(devices))
            results |= dict(zip(numbers, found, strict=True))
        done.append(list(itertools.chain.from_iterable(bucket)))
    return [results[i] for i in range(len(columns))]


def _after(column: Column, earlier: Sequence[Column], devices: Sequence[str]) -> Column:
    """The tensor of each device, for operations that must wait for earlier ones there."""
    if not earlier:
        return column
    waiting = []
    for i, device in enumerate(devices):
        with tf.device(device), tf.control_dependencies([each[i] for each in earlier]):
            waiting.append(tf.identity(column[i]))
    return waiting


def buckets(tensors: Sequence[tf.Tensor]) -> Iterator[list[list[int]]]:
    """Numbers of tensors, the last ones first, in groups of about `BUCKET_BYTES`.

    In a group, each large tensor is alone, and small ones of a dtype are together: sending a small
    one takes as long as sending all of them.
    """
    size = 0
    packs: list[list[int]] = []
    small: dict[tf.DType, list[int]] = {}
    for i in reversed(range(len(tensors))):
        tensor = tensors[i]
        if tensor.shape.num_elements() > SMALL:
            packs.append([i])
        elif tensor.dtype in small:
            small[tensor.dtype].append(i)
        else:
            small[tensor.dtype] = [i]
            packs.append(small[tensor.dtype])
        size += tensor.shape.num_elements() * tensor.dtype.size
        if size >= BUCKET_BYTES:
            yield packs
            size, packs, small = 0, [], {}
    if packs:
        yield packs


def _sum_of_pack(columns: list[Column], devices: Sequence[str], owner: int) -> list[Column]:
    """The sums of some tensors of one dtype, on each device. Small ones are sent as one vector."""
    if len(columns) == 1:
        return [_sum(columns[0], devices, owner)]
    shapes = [column[0].shape for column in columns]
    vectors = []
    for device, tensors in zip(devices, zip(*columns, strict=True), strict=True):
        with tf.device(device):
            vectors.append(tf.concat([tf.reshape(t, [-1]) for t in tensors], axis=0))
    totals = []
    for device, vector in zip(devices, _sum(vectors, devices, owner), strict=True):
        with tf.device(device):
            parts = split(vector, [shape.num_elements() for shape in shapes])
            totals.append([tf.reshape(p, s) for p, s in zip(parts, shapes, strict=True)])
    return list(zip(*totals, strict=True))


def _sum(column: Column, devices: Sequence[str], owner: int) -> Column:
    """The sum of a tensor over the devices, on each of them."""
    shape, count = column[0].shape, len(devices)
    size = shape.num_elements()
    if size <= SMALL:
        with tf.device(devices[owner]):
            total = pairwise([tf.identity(t) for t in column])
        return _on_each(total, devices)
    # Device i adds up the i-th part.
    ends = [size * i // count for i in range(count + 1)]
    sizes = [end - begin for begin, end in itertools.pairwise(ends)]
    parts = []
    for device, tensor in zip(devices, column, strict=True):
        with tf.device(device):
            parts.append(split(tf.reshape(tensor, [-1]), sizes))
    sums = []
    for device, of_part in zip(devices, zip(*parts, strict=True), strict=True):
        with tf.device(device):
            sums.append(pairwise([tf.identity(t) for t in of_part]))
    totals = []
    for device in devices:
        with tf.device(device):
            totals.append(tf.reshape(tf.concat([tf.identity(s) for s in sums], axis=0), shape))
    return totals


def _on_each(tensor: tf.Tensor, devices: Sequence[str]) -> Column:
    copies = []
    for device in devices:
        with tf.device(device):
            copies.append(tf.identity(tensor))
    return copies


# Between workers, with TensorFlow's collectives.


def _across_workers(
    tensors: list[tf.Tensor],
    exchange: Callable[[tf.distribute.Strategy, list[tf.Tensor]], list[tf.Tensor]],
) -> list[tf.Tensor]:
    """Calls `exchange` for the tensors of each dtype: a collective takes only one.

    Not `ReplicaContext.all_reduce`: TensorFlow keeps its gradient function, and with it the graph,
    for ever (2.21).
    """

    def merge(strategy: tf.distribute.Strategy, *given: tf.Tensor) -> list[tf.Tensor]:
        results: dict[int, tf.Tensor] = {}
        # The last ones first: their gradients are ready first.
        order = list(reversed(range(len(given))))
        for dtype in dict.fromkeys(tensors[i].dtype for i in order):
            numbers = [i for i in order if tensors[i].dtype == dtype]
            found = exchange(strategy, [given[i] for i in numbers])
            results |= dict(zip(numbers, found, strict=True))
        return [results[i] for i in range(len(given))]

    return tf.distribute.get_replica_context().merge_call(merge, args=tuple(tensors))


def _add_up(strategy: tf.distribute.Strategy, values: list[tf.Tensor]) -> list[tf.Tensor]:
    options = tf.distribute.experimental.CommunicationOptions(bytes_per_pack=BUCKET_BYTES)
    return strategy.extended.batch_reduce_to(
        tf.distribute.ReduceOp.SUM, [(value, value) for value in values], options
    )
