"""Cutting a global batch into shards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import tensorflow as tf

from kerasdist.devices.placement import Placement
from kerasdist.engine.compiled.random_seeds import OfStep
from kerasdist.engine.settings import Settings
from kerasdist.models import pure
from kerasdist.models.fields import Example
from kerasdist.models.tensors.composites import count_rows, is_composite, rows_of

Result = TypeVar("Result")
# A whole number, as a tensor or, where it is known while tracing, as an `int`.
Number: TypeAlias = tf.Tensor | int


def leaves(structure: Any) -> list[Any]:
    """The tensors of a nested structure, without None."""
    return [leaf for leaf in tf.nest.flatten(structure) if leaf is not None]


class Inputs(NamedTuple):
    """What all shards of a step share: values of the model's variables, seeds and loss scale."""

    trainable: Sequence[tf.Tensor]
    other: Sequence[tf.Tensor]
    seeds: OfStep
    scale: tf.Tensor | None

    @property
    def variables(self) -> tuple[tf.Tensor, ...]:
        """The values of all variables that a forward pass may change."""
        return (*self.trainable, *self.other)


class Piece(NamedTuple):
    """One shard as tensors: all that a function of a shard receives besides `Inputs`.

    `num_examples` is None for a whole batch. Otherwise it, `num_global` and `denominators` mean the
    same as in `pure.Shard`.
    """

    index: tf.Tensor
    args: tuple[Any, ...]
    y: Any
    sample_weight: Any
    num_examples: Number | None
    num_global: Number
    denominators: Sequence[tf.Tensor] | None

    @classmethod
    def of_batch(cls, example: Example) -> Piece:
        """A whole batch, for functions that need neither sizes nor denominators."""
        return cls(0, example.args, example.y, example.sample_weight, None, 0, None)

    @property
    def example(self) -> Example:
        args = self.args
        return Example(args, args[0] if len(args) == 1 else args, self.y, self.sample_weight)

    def shard(self, *, on_cpu: bool, is_jit: bool = False, is_step: bool = True) -> pure.Shard:
        own = self.num_global if self.num_examples is None else self.num_examples
        sizes = (own, self.num_global, self.denominators)
        return pure.Shard(*sizes, on_cpu=on_cpu, is_jit=is_jit, is_step=is_step)


class _Range(NamedTuple):
    """The rows of a shard: the first one, how many are taken, and how many of these count."""

    begin: Number
    size: Number
    num_counted: Number
    num_global: Number


class Cut:
    """The shards of one global batch that one replica runs.

    Shard i of n examples has the rows `[i * n // shards, (i + 1) * n // shards)`. So the cut
    depends on n and the number of shards, not on the devices. An empty shard borrows one real
    example and counts nothing.

    Args:
        example: The batch, or the part of it that this worker or this GPU has.
        shards: The number of shards of the whole batch.
        placement: The devices.
        replica: The number of this replica.
        span: For a part: the size of the whole batch, and the part's first row in it.
        is_whole: Whether a part for a GPU has all rows of the batch.
        known: Whether to use the batch size while tracing, where it is known. That saves
            operations, but rounds differently. Shards in a loop cannot use it, so it must be off
            where bits must not depend on who runs a shard.
    """

    def __init__(
        self,
        example: Example,
        shards: int,
        placement: Placement,
        replica: Number,
        span: tf.Tensor | None = None,
        *,
        is_whole: bool = False,
        known: bool = False,
    ):
        self._is_whole = is_whole
        self.example = example
        self._is_gpu, self._host = placement.is_gpu, placement.host
        self._size = leaves(example.args)[0].shape[0] if known and span is None else None
        if span is None:
            self.num_global = count_rows(leaves(example.args)[0])
            self._first_row = tf.constant(0, tf.int64)
        else:
            with self._host():
                self.num_global, self._first_row = span[0], span[1]
        self.shards = shards
        self.num_replicas = placement.num_replicas
        self.per_replica = shards // self.num_replicas
        self._first = replica * self.per_replica

    @classmethod
    def of_step(
        cls,
        settings: Settings,
        placement: Placement,
        example: Example,
        replica: Number,
        span: tf.Tensor | None,
    ) -> Cut:
        """The shards of a step of training or evaluation."""
        return cls(
            example,
            settings.shards,
            placement,
            replica,
            span,
            is_whole=settings.needs_whole,
            known=not (settings.deterministic or settings.jit),  # XLA knows all sizes anyway.
        )

    def each(
        self,
        function: Callable[[Piece], Result],
        denominators: Sequence[tf.Tensor] | None = None,
    ) -> Callable[[Number], Result]:
        """`function` of the i-th shard of this replica, as a function of i."""
        return lambda i: function(self.shard(i, denominators))

    def shard(self, local_index: Number, denominators: Sequence[tf.Tensor] | None = None) -> Piece:
        """The shard with the number `local_index` among those of this replica."""
        index = self._first + local_index
        example = self.example
        if self.shards == 1:
            parts = (example.args, example.y, example.sample_weight)
            with self._host():
                number = tf.convert_to_tensor(index)
            return Piece(number, *parts, None, self.num_global, denominators)
        with self._host():
            rows = self._rows(index)
        # The part of a GPU has the rows of its shards only.
        is_cut = self._is_gpu and self.per_replica == 1 and not self._is_whole

        def slice_rows(tensor: tf.Tensor | None) -> tf.Tensor | None:
            if tensor is None or is_cut:
                return tensor
            if self._is_gpu and not is_composite(tensor):
                return self._sliced(tensor, rows)
            return rows_of(tensor, rows.begin, rows.begin + rows.size)

        args, y, weights = (
            tf.nest.map_structure(slice_rows, part)
            for part in (example.args, example.y, example.sample_weight)
        )
        with self._host():
            index = tf.convert_to_tensor(index)
        return Piece(index, args, y, weights, rows.num_counted, rows.num_global, denominators)

    def _sliced(self, tensor: tf.Tensor, rows: _Range) -> tf.Tensor:
        """A slice of a tensor on a GPU, by numbers in the host's memory."""
        rest = len(tensor.shape) - 1
        with self._host():
            begin = tf.stack([tf.cast(rows.begin, tf.int64), *[0] * rest])
            size = tf.stack([tf.cast(rows.size, tf.int64), *[-1] * rest])
        sliced = tf.slice(tensor, begin, size)
        sliced.set_shape([None, *tensor.shape[1:]])  # Keras takes other ways if it does not know.
        return sliced

    def _rows(self, index: Number) -> _Range:
        """Numbers if both the batch size and the index are known while tracing, else tensors."""
        number = tf.get_static_value(index)
        if self._size is not None and number is not None:
            return _range(self._size, int(number), self.shards, min, max)
        index = tf.cast(index, tf.int64)
        rows = _range(self.num_global, index, self.shards, tf.minimum, tf.maximum)
        return rows._replace(begin=rows.begin - self._first_row)


def _range(
    n: Number,
    index: Number,
    shards: int,
    minimum: Callable[..., Number],
    maximum: Callable[..., Number],
) -> _Range:
    # The formula of `first_row` in devices/placement.py, by which workers read their rows.
    begin, end = index * n // shards, (index + 1) * n // shards
    count = end - begin
    begin = minimum(begin, n - 1)
    return _Range(begin, maximum(end - begin, 1), count, n)
