"""What each shard adds to a step: loss, gradients, changed state and metrics, packed in vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import tensorflow as tf

from kerasdist.engine.packing import Packing
from kerasdist.engine.shards import Inputs
from kerasdist.engine.sums import SMALL, Changed, Deltas, Totals
from kerasdist.models import pure
from kerasdist.models.state_rules import MEAN, SAME, SUM


class StateTerms:
    """The terms of variables that a forward pass changes, such as BatchNorm's averages.

    `rules` names a rule for some variables, by their id. For the others, floats are averaged over
    shards, and other types take the value of shard 0. `before` has the values of the trainable and
    the other variables at the start of the step.
    """

    def __init__(self, roles: pure.Parts, rules: Mapping[int, str]):
        variables = (*roles.trainable, *roles.other)
        self._rules = rules
        self._is_whole = False
        self._dtypes = {id(v): v.dtype for v in variables}
        self._places = {id(v): i for i, v in enumerate(variables)}

    def rule(self, key: int) -> str:
        """The rule of a variable, by its id."""
        is_float = tf.as_dtype(self._dtypes[key]).is_floating
        return self._rules.get(key, MEAN if is_float else SAME)

    def takes_first(self, keys: Sequence[int]) -> bool:
        """Whether some variable takes the value of shard 0."""
        return any(self.rule(key) == SAME for key in keys)

    def of_shard(
        self, changed: Changed, shard: pure.Shard, index: tf.Tensor, before: Sequence[tf.Tensor]
    ) -> list[tf.Tensor]:
        self._is_whole = shard.is_whole
        return [
            self._term(key, value, shard, index, before[self._places[key]])
            for key, value in changed.items()
        ]

    def _term(
        self, key: int, value: tf.Tensor, shard: pure.Shard, index: tf.Tensor, before: tf.Tensor
    ) -> tf.Tensor:
        rule = self.rule(key)
        if value.dtype == tf.bool:
            value = tf.cast(value, tf.int32)
        if shard.is_whole:
            return wide(value)
        if rule == MEAN:
            return if_any(shard, weighted(shard, wide(value)))
        if rule == SUM:
            return if_any(shard, wide(value) - wide(before))
        # Shard 0 decides, even if it has no examples.
        return only_if(tf.equal(index, 0), wide(value))

    def new_values(
        self, keys: Sequence[int], totals: Sequence[tf.Tensor], before: Sequence[tf.Tensor]
    ) -> Changed:
        """The new values, from the sums over all shards."""
        new = {}
        for key, total in zip(keys, totals, strict=True):
            if self.rule(key) == SUM and not self._is_whole:
                total = total + wide(before[self._places[key]])
            new[key] = tf.cast(total, self._dtypes[key])
        return new


class Terms:
    """The terms of a training step. `of_shard` packs them into a list, `split` takes sums apart.

    Args:
        roles: The model's variables.
        state: The terms of the changed state.
        packed: Whether to pack the terms into one vector per dtype.
        joined: Whether the model trains as one vector.
    """

    def __init__(self, roles: pure.Parts, state: StateTerms, *, packed: bool, joined: bool):
        self._roles, self._state = roles, state
        self._packed, self._joined = packed, joined
        # What the trace of a shard finds:
        self._packing = Packing((), ())
        self._has_gradient: list[bool] = []
        self._changed: list[int] = []
        self._num_metrics = 0

    def of_shard(
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
            wide(_dense(gradient, variable.shape))
            for variable, gradient in zip(self._roles.trainable, gradients, strict=True)
            if gradient is not None
        ]
        state = self._state.of_shard(forward.changed, shard, index, before)
        terms = [loss, *dense, *state, *forward.metrics]
        self._packing = Packing.of(terms)
        self._num_metrics = len(forward.metrics)
        # A value of shard 0 counts even if shard 0 has no examples.
        is_float = all(term.dtype.is_floating for term in terms)
        if is_float and self.is_small and not self._state.takes_first(self._changed):
            # All at once is quicker. The loss and gradients of an empty shard are 0 anyway.
            return [if_any(shard, vector) for vector in self._packing.pack(terms)]
        terms = [loss, *dense, *state, *(if_any(shard, metric) for metric in forward.metrics)]
        return self._packing.pack(terms) if self._packed else terms

    @property
    def length(self) -> int:
        """How many tensors `of_shard` returns."""
        packing = self._packing
        return len(packing.vector_dtypes if self._packed else packing.shapes)

    @property
    def is_small(self) -> bool:
        """Whether the terms are packed, and few numbers."""
        return self._packed and sum(self._packing.sizes) <= SMALL

    @property
    def is_joined(self) -> bool:
        """Whether the sums are one vector that has the gradients of all variables in a row."""
        trainable = {id(v) for v in self._roles.trainable}
        return (
            self._joined
            and self._packed
            and all(self._has_gradient)
            and trainable.isdisjoint(self._changed)
            and len(self._packing.vector_dtypes) == 1
        )

    @property
    def checked_names(self) -> tuple[str, ...]:
        """The names of everything that must be finite before the step is written."""
        paths = {id(v): v.path for v in (*self._roles.trainable, *self._roles.other)}
        pairs = zip(self._roles.trainable, self._has_gradient, strict=True)
        gradients = [f"gradient of {variable.path}" for variable, has in pairs if has]
        return ("loss", *gradients, *(f"state {paths[key]}" for key in self._changed))

    def flags(self, of_replicas: Sequence[Sequence[tf.Tensor]], count: int) -> tf.Tensor:
        """`[replicas, count]`: whether the first `count` packed terms are finite."""
        return self._packing.finite(of_replicas)[:, :count]

    def split(self, sums: Sequence[tf.Tensor], before: Sequence[tf.Tensor]) -> Totals:
        """Takes apart sums of what `of_shard` returned."""
        rest = iter(self._packing.unpack(sums) if self._packed else sums)
        loss = next(rest)
        gradients = [
            tf.cast(next(rest), variable.dtype) if has else None
            for variable, has in zip(self._roles.trainable, self._has_gradient, strict=True)
        ]
        of_state = [next(rest) for _ in self._changed]
        changed = self._state.new_values(self._changed, of_state, before)
        return Totals(loss, gradients, changed, Deltas(list(rest), None))

    def split_totals(self, sums: Sequence[tf.Tensor], inputs: Inputs) -> Totals:
        """As `split`, without the loss scale, and with what the quick ways need."""
        totals = self.split(sums, inputs.variables)
        if inputs.scale is not None:
            return replace(totals, gradients=_unscaled(totals.gradients, inputs.scale))
        if self.is_joined:
            sizes = self._packing.sizes
            end, count = len(sizes) - self._num_metrics, 1 + len(self._has_gradient)
            blocks = [1, sum(sizes[1:count]), sum(sizes[count:end]), sum(sizes[end:])]
            loss, gradients, _, deltas = tf.split(sums[0], blocks)
            totals = replace(
                totals,
                loss=tf.reshape(loss, ()),
                gradient_vector=gradients,
                deltas=replace(totals.deltas, vector=deltas),
            )
        # Sums of 16-bit floats are wider than the tensors: they may be finite where these are not.
        if self._packed and all(t.dtype.size > 2 for t in totals.checked):
            packed = self._packing.without_last(self._num_metrics, sums)
            totals = replace(totals, packed=packed)
        return totals


def gradients(
    tape: tf.GradientTape,
    loss: tf.Tensor | Sequence[tf.Tensor],
    roles: pure.Parts,
    trainable: Sequence[tf.Tensor],
    changed: Changed,
    output_gradients: Sequence[tf.Tensor] | None = None,
) -> list[Any]:
    """The gradients of a shard, for the value of each variable at the start of the step.

    If `call` assigns a new value to a variable, the gradient for that value is added. In place of
    the loss, several tensors can be given, with the gradients of the loss for them.
    """
    given = {i: changed[id(v)] for i, v in enumerate(roles.trainable) if id(v) in changed}
    sources = (trainable, list(given.values()))
    found, more = tape.gradient(loss, sources, output_gradients=output_gradients)
    for i, gradient in zip(given, more, strict=True):
        if gradient is not None:
            first = found[i]
            found[i] = gradient if first is None else tf.convert_to_tensor(first) + gradient
    return found


def _unscaled(gradients: Sequence[tf.Tensor | None], scale: tf.Tensor) -> list[tf.Tensor | None]:
    return [None if g is None else g / tf.cast(scale, g.dtype) for g in gradients]


def _dense(gradient: Any, shape: tf.TensorShape) -> tf.Tensor:
    """The whole gradient of an embedding, with the shape that TensorFlow does not infer."""
    dense = tf.convert_to_tensor(gradient)
    return dense if dense.shape == shape else tf.ensure_shape(dense, shape)


def wide(tensor: tf.Tensor) -> tf.Tensor:
    """16-bit floats as float32, which they are summed in."""
    is_half = tensor.dtype.is_floating and tensor.dtype.size < 4
    return tf.cast(tensor, tf.float32) if is_half else tensor


def weighted(shard: pure.Shard, value: tf.Tensor) -> tf.Tensor:
    """Times the shard's share of the global batch."""
    return value if shard.is_whole else value * tf.cast(shard.weight, value.dtype)


def if_any(shard: pure.Shard, value: tf.Tensor) -> tf.Tensor:
    """`value`, or zeros for a shard without examples. A whole batch always has some."""
    if shard.is_whole or (isinstance(shard.num_examples, int) and shard.num_examples > 0):
        return value
    return only_if(shard.num_examples > 0, value)


def only_if(condition: tf.Tensor, value: tf.Tensor) -> tf.Tensor:
    """`value`, or zeros. Not a product with 0: that is NaN where `value` is not finite."""
    return tf.where(condition, value, tf.zeros_like(value))
