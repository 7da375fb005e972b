"""Cutting a global batch into shards, and what each shard contributes to a step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from kerasdist.devices.placement import Placement
from kerasdist.engine import sums
from kerasdist.engine.sums import SMALL
from kerasdist.models import pure
from kerasdist.models.fields import Example
from kerasdist.models.state_rules import MEAN, SAME, SUM


def leaves(structure: Any) -> list[Any]:
    return [leaf for leaf in tf.nest.flatten(structure) if leaf is not None]


def _map(function, structure: Any) -> Any:
    return tf.nest.map_structure(lambda t: None if t is None else function(t), structure)


class Piece(NamedTuple):
    """One shard as tensors: all that a function of it is given.

    `num_examples` is None for a whole batch; else it, `num_global` and `denominators` are as in
    `pure.Shard`.
    """

    index: Any
    args: tuple
    y: Any
    sample_weight: Any
    num_examples: Any
    num_global: Any
    denominators: Any

    @property
    def example(self) -> Example:
        args = self.args
        return Example(args, args[0] if len(args) == 1 else args, self.y, self.sample_weight)

    def shard(self, *, on_cpu: bool, is_step: bool = True) -> pure.Shard:
        own = self.num_global if self.num_examples is None else self.num_examples
        return pure.Shard(own, self.num_global, self.denominators, on_cpu=on_cpu, is_step=is_step)


class Cut:
    """The shards of one global batch that one replica runs.

    Shard i of n examples is `[i * n // shards, (i + 1) * n // shards)`: it depends on n and the
    number of shards alone. An empty shard borrows one real example and counts nothing.

    `example` may be a part of the batch: `span` then has the batch's size and the part's first row.
    With `known`, what follows from a size that is known while tracing is computed then. Shards that
    a loop runs do not know it, so it is not for bits that must not depend on who runs them.
    """

    def __init__(
        self,
        example: Example,
        shards: int,
        placement: Placement,
        replica,
        span=None,
        *,
        known: bool = False,
    ):
        self.example = example
        self._size = leaves(example.args)[0].shape[0] if known and span is None else None
        if span is None:
            self.num_global = tf.shape(leaves(example.args)[0], out_type=tf.int64)[0]
            self._first_row = tf.constant(0, tf.int64)
        else:
            self.num_global, self._first_row = span[0], span[1]
        self.shards = shards
        self.per_replica = shards // placement.num_replicas
        self._first = replica * self.per_replica
        self._on_host = placement.is_gpu

    def shard(self, local_index, denominators=None) -> Piece:
        """The `local_index`-th shard of this replica."""
        index = self._first + local_index
        e = self.example
        if self.shards == 1:
            index = tf.convert_to_tensor(index)
            return Piece(index, e.args, e.y, e.sample_weight, None, self.num_global, denominators)
        whole: Any = self._size
        number = tf.get_static_value(index)
        if whole is None or number is None:
            whole, number = self.num_global, tf.cast(index, tf.int64)
            begin, size, count = _range(whole, number, self.shards, tf.minimum, tf.maximum)
            begin -= self._first_row
        else:
            begin, size, count = _range(whole, int(number), self.shards, min, max)

        def slice_rows(tensor):
            if self._on_host:  # Only the slice travels to the GPU.
                with tf.device("CPU:0"):
                    return tensor[begin : begin + size]
            return tensor[begin : begin + size]

        args, y, weights = (_map(slice_rows, part) for part in (e.args, e.y, e.sample_weight))
        index = tf.convert_to_tensor(index)
        return Piece(index, args, y, weights, count, whole, denominators)


def _range(n, index, shards: int, minimum, maximum) -> tuple:
    """First row, number of rows, and how many of them count."""
    begin, end = index * n // shards, (index + 1) * n // shards
    count = end - begin
    begin = minimum(begin, n - 1)
    return begin, maximum(end - begin, 1), count


class Seeds:
    """States of all seed generators: a function of (seed, generator, step, shard index)."""

    def __init__(self, seed: int, step: tf.Tensor, num_generators: int):
        self._seed = seed
        self._step = step
        self._num_generators = num_generators

    def of_shard(self, index) -> list[tf.Tensor]:
        of_step = tf.random.stateless_uniform(
            (2,),
            tf.stack([tf.constant(self._seed, tf.int64), self._step]),
            minval=0,
            maxval=2**31 - 1,
            dtype=tf.int64,
            alg="philox",
        )
        states = tf.random.stateless_uniform(
            (self._num_generators, 2),
            of_step + tf.stack([tf.constant(0, tf.int64), tf.cast(index, tf.int64)]),
            minval=0,
            maxval=2**31 - 1,
            dtype=tf.int64,
            alg="philox",
        )
        return tf.unstack(states, self._num_generators)


class StateTerms:
    """What adds up over shards of the state that a forward pass changed.

    `rules` has one of the three for some variables, by their id. Of the others, floats are averaged
    and anything else is shard 0's. `before` are the values that the trainable and the other
    variables have at the step's start.
    """

    def __init__(self, roles: pure.Parts, rules: Mapping[int, str]):
        variables = (*roles.trainable, *roles.other)
        self._rules = rules
        self._is_whole = False
        self._dtypes = {id(v): v.dtype for v in variables}
        self._places = {id(v): i for i, v in enumerate(variables)}

    def _rule(self, key: int) -> str:
        is_float = tf.as_dtype(self._dtypes[key]).is_floating
        return self._rules.get(key, MEAN if is_float else SAME)

    def takes_first(self, keys: Sequence[int]) -> bool:
        """Whether some value is shard 0's."""
        return any(self._rule(key) == SAME for key in keys)

    def of_shard(
        self,
        changed: Mapping[int, tf.Tensor],
        shard: pure.Shard,
        index: tf.Tensor,
        before: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        self._is_whole = shard.is_whole
        return [
            self._term(key, value, shard, index, before[self._places[key]])
            for key, value in changed.items()
        ]

    def _term(self, key: int, value: tf.Tensor, shard: pure.Shard, index, before) -> tf.Tensor:
        rule = self._rule(key)
        if value.dtype == tf.bool:
            value = tf.cast(value, tf.int32)
        if shard.is_whole:
            return _wide(value)
        if rule == MEAN:
            return if_any(shard, weighted(shard, _wide(value)))
        if rule == SUM:
            return if_any(shard, _wide(value) - _wide(before))
        # Shard 0's, also if that has no examples.
        return only_if(tf.equal(index, 0), _wide(value))

    def new_values(
        self, keys: Sequence[int], totals: Sequence[tf.Tensor], before: Sequence[tf.Tensor]
    ) -> dict[int, tf.Tensor]:
        """By variable id, of the sums over all shards."""
        new = {}
        for key, total in zip(keys, totals, strict=True):
            if self._rule(key) == SUM and not self._is_whole:
                total = total + _wide(before[self._places[key]])
            new[key] = tf.cast(total, self._dtypes[key])
        return new


class Terms:
    """What adds up over shards: loss, gradients, changed state, metric deltas, in one list."""

    def __init__(self, roles: pure.Parts, packed: bool, state: StateTerms):
        self._roles = roles
        self._packed = packed
        self._state = state
        self._packing = sums.Packing((), ())
        self._has_gradient: list[bool] = []
        self._changed: list[int] = []
        self._num_metrics = 0

    def join(
        self,
        loss: tf.Tensor,
        gradients: Sequence[Any],
        forward: pure.Forward,
        shard: pure.Shard,
        index: tf.Tensor,
        before: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        self._has_gradient = [g is not None for g in gradients]
        self._changed = list(forward.changed)
        dense = [
            _wide(_dense(gradient, variable.shape))
            for variable, gradient in zip(self._roles.trainable, gradients, strict=True)
            if gradient is not None
        ]
        state = self._state.of_shard(forward.changed, shard, index, before)
        terms = [loss, *dense, *state, *forward.metrics]
        self._packing = sums.Packing.of(terms)
        self._num_metrics = len(forward.metrics)
        # What is shard 0's is so even if that has no examples.
        is_float = all(term.dtype.is_floating for term in terms)
        if is_float and self.is_small and not self._state.takes_first(self._changed):
            # All of it at once, which is quicker: an empty shard's loss and gradients are 0 anyway.
            return [if_any(shard, vector) for vector in self._packing.pack(terms)]
        terms = [loss, *dense, *state, *(if_any(shard, metric) for metric in forward.metrics)]
        return self._packing.pack(terms) if self._packed else terms

    def checked_vectors(self, totals: list[tf.Tensor]) -> list[tf.Tensor] | None:
        """All floats of the sums but the metrics, if they are packed."""
        if not self._packed:
            return None
        return self._packing.without_last(self._num_metrics, totals)

    @property
    def is_small(self) -> bool:
        """Whether the terms are packed, and few numbers."""
        return self._packed and self._packing.num_elements <= SMALL

    @property
    def is_joined(self) -> bool:
        """Whether the terms are one vector, in which the gradients of all variables are a part."""
        trainable = {id(v) for v in self._roles.trainable}
        return (
            self._packed
            and all(self._has_gradient)
            and trainable.isdisjoint(self._changed)
            and len(self._packing.vector_dtypes) == 1
        )

    def blocks(self, totals: list[tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """`(loss, gradients, metric deltas)`, the last two as vectors, if `is_joined`."""
        sizes = [math.prod(shape) for shape in self._packing.shapes]
        end = len(sizes) - self._num_metrics
        count = 1 + len(self._has_gradient)
        of_blocks = [1, sum(sizes[1:count]), sum(sizes[count:end]), sum(sizes[end:])]
        loss, gradients, _, deltas = tf.split(totals[0], of_blocks)
        return tf.reshape(loss, ()), gradients, deltas

    def flags(self, of_replicas: Sequence[Sequence[tf.Tensor]], count: int) -> tf.Tensor:
        """`[replicas, count]`: whether the first `count` terms are finite, if `is_small`."""
        return self._packing.finite(of_replicas)[:, :count]

    def split(self, totals: list[tf.Tensor], before: Sequence[tf.Tensor]):
        """`(loss, gradients with None, changed state by variable id, metric deltas)`."""
        if self._packed:
            totals = self._packing.unpack(totals)
        rest = iter(totals)
        loss = next(rest)
        gradients = [
            tf.cast(next(rest), variable.dtype) if has else None
            for variable, has in zip(self._roles.trainable, self._has_gradient, strict=True)
        ]
        of_state = [next(rest) for _ in self._changed]
        changed = self._state.new_values(self._changed, of_state, before)
        return loss, gradients, changed, list(rest)


def _dense(gradient: Any, shape: tf.TensorShape) -> tf.Tensor:
    """An embedding's rows as a whole gradient, with the shape that TensorFlow does not infer."""
    dense = tf.convert_to_tensor(gradient)
    return dense if dense.shape == shape else tf.ensure_shape(dense, shape)


def _wide(tensor: tf.Tensor) -> tf.Tensor:
    """Sums of 16-bit floats are taken in float32."""
    is_half = tensor.dtype.is_floating and tensor.dtype.size < 4
    return tf.cast(tensor, tf.float32) if is_half else tensor


def weighted(shard: pure.Shard, value: tf.Tensor) -> tf.Tensor:
    """Times the shard's share of the global batch."""
    return value if shard.is_whole else value * tf.cast(shard.weight, value.dtype)


def if_any(shard: pure.Shard, value: tf.Tensor) -> tf.Tensor:
    """`value`, or zeros for a shard without examples; a batch has some."""
    if shard.is_whole or (isinstance(shard.num_examples, int) and shard.num_examples > 0):
        return value
    return only_if(shard.num_examples > 0, value)


def only_if(condition: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """`value`, or zeros: also where `value` is not finite, as a product with 0 would not be."""
    return tf.where(condition, value, tf.zeros_like(value))


def own_rows(outputs: Any, shard: pure.Shard) -> list[tf.Tensor | None]:
    """Flat outputs, then their masks, without the borrowed example of an empty shard."""
    flat = tf.nest.flatten(outputs)
    masks = [pure.get_mask(t) for t in flat]
    return [None if t is None else t[: shard.num_examples] for t in (*flat, *masks)]


def with_masks(structure: Any, rows: Sequence[tf.Tensor | None]) -> Any:
    """Undoes `own_rows`: outputs in their structure, masks attached."""
    half = len(rows) // 2
    outputs = [tf.identity(t) for t in rows[:half]]
    for tensor, mask in zip(outputs, rows[half:], strict=True):
        if mask is not None:
            pure.set_mask(tensor, mask)
    return tf.nest.pack_sequence_as(structure, outputs)
