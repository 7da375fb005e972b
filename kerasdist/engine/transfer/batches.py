"""How batches come to the devices: CPUs take them where they are, GPUs get them ahead of time."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import tensorflow as tf

from kerasdist.data.rows import Rows
from kerasdist.devices.placement import HOST, Placement, Share, on_host
from kerasdist.engine.shards import leaves
from kerasdist.models.tensors.composites import count_rows, rows_of

# The part of a batch that a replica gets, and `[size of the whole batch, first row of the part]`.
Part = tuple[Any, tf.Tensor]

_numbers = itertools.count()


class Staged(NamedTuple):
    """Batches for GPUs: an iterator, and the size of the batch that was taken out of it already.

    The parts of that batch wait on the devices. The size is 0 if no batch waits.
    """

    iterator: tf.data.Iterator
    count: tf.Tensor


# Where batches come from: a `tf.data.Dataset`, on its way to GPUs or not, or arrays in memory.
Source: TypeAlias = tf.data.Iterator | Staged | Rows


class Batches(Protocol):
    """How a compiled loop gets the batches of an iterator."""

    def source(self, batches: Source) -> Source:
        """What the loop reads."""

    def keep(self, count: tf.Tensor) -> None:
        """Remembers the size of the batch that the loop has left on the devices."""

    def clear(self) -> None:
        """Drops the batch that waits."""

    def next(self, batches: Source) -> Source | None:
        """What `first` takes the next batch from, in a compiled function; None at the end."""

    def first(self, found: Any) -> Any:
        """The batch that `next` found, or a list of the part of each replica."""


@dataclass(frozen=True)
class HostBatches:
    """Takes batches where they are.

    With `of_one_size`, batches of arrays have a known size, if they all have the same.
    """

    of_one_size: bool

    def source(self, batches: Source) -> Source:
        if isinstance(batches, Rows):
            return batches._replace(of_one_size=self.of_one_size)
        return batches

    def keep(self, count: tf.Tensor) -> None:
        pass

    def clear(self) -> None:
        pass

    def next(self, batches: Source) -> Source | None:
        # Not the batch itself, for `Rows`: TensorFlow would fold its known size into constants,
        # which rounds differently.
        if isinstance(batches, Rows):
            return self.source(batches) if batches.position < batches.num_batches else None
        optional: Any = cast(Any, batches).get_next_as_optional()
        return optional if optional.has_value() else None

    def first(self, found: Any) -> Any:
        return found.batch(found.position) if isinstance(found, Rows) else found.get_value()


class DeviceBatches:
    """Cuts batches on the host, copies each part to its GPU, and keeps it there for the next step.

    Args:
        placement: The devices.
        shards: The number of shards of a batch.
        needs_whole: Whether every replica needs the whole batch.
    """

    def __init__(self, placement: Placement, shards: int, *, needs_whole: bool = False):
        self._placement, self._shards, self._needs_whole = placement, shards, needs_whole
        self._name = f"kerasdist_batches_{next(_numbers)}"
        self._iterator: tf.data.Iterator | None = None
        self._count = on_host(0)
        # From the beginning of a call until its end. A call that fails may leave a batch behind.
        self._is_in_use = False
        self._fetch = tf.function(self.fetch, autograph=False)

    # Called from Python, between two calls of a compiled loop:

    def source(self, batches: Source) -> Staged:
        if batches is not self._iterator:
            self.clear()
            self._iterator = batches
        self._is_in_use = True
        return Staged(batches, self._count)

    def keep(self, count: tf.Tensor) -> None:
        self._count, self._is_in_use = count, False

    def next(self, batches: Source) -> Staged | None:
        found = self.source(batches)
        if int(found.count) == 0:
            found = found._replace(count=self._fetch(found.iterator))
        self.keep(on_host(0))
        return found if int(found.count) > 0 else None

    def clear(self) -> None:
        self._iterator = None
        if int(self._count) > 0 or self._is_in_use:
            for device, name in self._areas():
                with tf.device(device):
                    tf.raw_ops.StageClear(dtypes=[], shared_name=name)
        self.keep(on_host(0))

    # Called in a compiled loop:

    def first(self, found: Any) -> list[Part]:
        return self.take(found.iterator.element_spec, found.count)

    def parts(self, batch: Any) -> list[Part]:
        """The part of each replica of this process, cut on the host."""
        batch, count, first = self._with_size(batch)
        return [
            (self._part(batch, count, first, share), self._span(count, share))
            for share in self._shares()
        ]

    def fetch(self, iterator: tf.data.Iterator) -> tf.Tensor:
        """Takes the next batch and sends it to the devices. Returns its size; 0 at the end."""
        with tf.device(HOST):
            found = iterator.get_next_as_optional()
            return tf.cond(
                found.has_value(),
                lambda: self._send(found.get_value()),
                lambda: tf.constant(0, tf.int64),
            )

    def take(self, spec: Any, count: tf.Tensor) -> list[Part]:
        """The parts that wait on the devices, of a batch with this size and element spec."""
        batch_spec = spec if self._placement.workers is None else spec[0]
        flat = tf.nest.flatten(batch_spec, expand_composites=True)
        parts = []
        for (there, here), share in zip(self._pairs(), self._shares(), strict=True):
            found: dict[int, tf.Tensor] = {}
            for (device, name), is_host in ((there, False), (here, True)):
                numbers = [i for i, s in enumerate(flat) if _stays_on_host(s.dtype) is is_host]
                if not numbers:
                    continue
                with tf.device(device), tf.control_dependencies([count]):
                    dtypes = [flat[i].dtype for i in numbers]
                    values = tf.raw_ops.Unstage(dtypes=dtypes, shared_name=name)
                for i, value in zip(numbers, values, strict=True):
                    value.set_shape([None, *flat[i].shape[1:]])
                    found[i] = value
            values = [found[i] for i in range(len(flat))]
            part = tf.nest.pack_sequence_as(batch_spec, values, expand_composites=True)
            parts.append((part, self._span(count, share)))
        return parts

    def _send(self, batch: Any) -> tf.Tensor:
        batch, count, first = self._with_size(batch)
        sent = []
        for (there, here), share in zip(self._pairs(), self._shares(), strict=True):
            part = self._part(batch, count, first, share)
            flat = tf.nest.flatten(part, expand_composites=True)
            for (device, name), is_host in ((there, False), (here, True)):
                values = [t for t in flat if _stays_on_host(t.dtype) is is_host]
                if values:
                    with tf.device(device):
                        sent.append(tf.raw_ops.Stage(values=values, shared_name=name))
        with tf.control_dependencies(sent):
            return tf.identity(count)

    def _with_size(self, batch: Any) -> tuple[Any, tf.Tensor, tf.Tensor | int]:
        """The rows that this process has, the size of the whole batch, and their first row."""
        with tf.device(HOST):
            if self._placement.workers is not None:
                batch, span = batch
                return batch, span[0], span[1]
            return batch, count_rows(leaves(batch)[0]), 0

    def _part(self, batch: Any, count: tf.Tensor, first: tf.Tensor | int, share: Share) -> Any:
        if self._needs_whole or (share.end - share.first == self._shards):
            return batch
        with tf.device(HOST):
            begin, end = share.rows(count, tf.minimum, tf.maximum)
            return tf.nest.map_structure(lambda t: rows_of(t, begin - first, end - first), batch)

    def _span(self, count: tf.Tensor, share: Share) -> tf.Tensor:
        with tf.device(HOST):
            if self._needs_whole:
                return tf.stack([count, 0])
            return tf.stack([count, share.rows(count, tf.minimum, tf.maximum)[0]])

    def _shares(self) -> list[Share]:
        """The shards of each replica of this process."""
        count = self._shards // self._placement.num_replicas
        firsts = [replica * count for replica in self._placement.replicas]
        return [Share(first, first + count, self._shards) for first in firsts]

    def _pairs(self) -> Sequence[tuple[tuple[str, str], tuple[str, str]]]:
        """For each replica: where its part waits, and where numbers wait that GPUs do not take."""
        return [
            ((device, f"{self._name}_{i}"), (HOST, f"{self._name}_{i}_host"))
            for i, device in enumerate(self._placement.devices)
        ]

    def _areas(self) -> list[tuple[str, str]]:
        return [area for pair in self._pairs() for area in pair]


def _stays_on_host(dtype: tf.DType) -> bool:
    """Most GPU operations on int32 run on the host (TF 2.21). Those that do not copy it."""
    return dtype in (tf.int32, tf.string)
