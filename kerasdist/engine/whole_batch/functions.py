"""What a loss over the whole batch needs: outputs of a shard, the loss, the backward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from kerasdist.engine.shard_functions import ShardFunctions, counted
from kerasdist.engine.shards import Inputs, Piece
from kerasdist.engine.sums import Changed, Rows
from kerasdist.engine.terms import StateTerms, gradients, if_any, only_if, weighted, wide
from kerasdist.errors import KerasdistError
from kerasdist.models import pure
from kerasdist.models.state_rules import SUM
from kerasdist.models.whole_batch.separation import ROWS, Separation


class Outputs(NamedTuple):
    """What the forward pass of a shard leaves behind.

    Attributes:
        rows: The outputs, then their masks: one row per example.
        added_rows: Losses by `add_loss` with one row per example.
        added: The shard's part of the other losses by `add_loss`.
        state: The terms of the state that the pass changed.
        metrics: The changes of metrics that the pass updated.
    """

    rows: Rows
    added_rows: Rows
    added: list[tf.Tensor]
    state: list[tf.Tensor]
    metrics: list[tf.Tensor]


class Loss(NamedTuple):
    """The loss of a whole batch, and its gradients, times the loss scale.

    Attributes:
        value: The loss.
        of_rows: The gradient for each of the outputs, and of the `added_rows`. None where the loss
            does not depend on it.
        of_added: The gradient for each of the other losses by `add_loss`.
        direct: The gradient for each trainable variable that the loss itself reads.
        changed: New values of the variables that the loss changes.
        metrics: The changes of metrics that the loss updates.
    """

    value: tf.Tensor
    of_rows: list[tf.Tensor | None]
    of_added: list[tf.Tensor | None]
    direct: list[tf.Tensor | None]
    changed: list[tf.Tensor]
    metrics: list[tf.Tensor]


class WholeBatchFunctions:
    """The functions of a step whose loss needs the whole batch. As in `ShardFunctions`, sealed.

    Args:
        functions: The functions of a shard.
        roles: The model's variables.
        state: How the state that a forward pass changes adds up.
        separation: How the losses by `add_loss` add up.
        training: Whether they train or evaluate.
        shards: The number of shards.
    """

    def __init__(
        self,
        functions: ShardFunctions,
        roles: pure.Parts,
        state: StateTerms,
        separation: Separation,
        *,
        training: bool,
        shards: int,
    ):
        self._functions, self._roles, self._state = functions, roles, state
        self._rules, self._training, self._shards = separation.added, training, shards
        # What the traces find:
        self._changed: list[int] = []
        self._changed_by_loss: list[int] = []
        self._owners: tuple[keras.layers.Layer | None, ...] = ()
        self.outputs = (functions.compiled if training else functions.seal)(self._outputs)
        self.loss = functions.seal(self._loss)
        self.backward = functions.compiled(self._backward)

    def _outputs(self, inputs: Inputs, piece: Piece) -> Outputs:
        shard = self._functions.shard(piece)
        forward = self._functions.call(inputs, piece, shard, training=self._training)
        self._changed, self._owners = list(forward.changed), forward.owners
        if len(forward.added) != len(self._rules):
            raise KerasdistError(
                f"The model adds {len(forward.added)} losses by `add_loss`, but it added "
                f"{len(self._rules)} when it was checked. Expected as many for every batch. Call "
                "`add_loss` in every forward pass."
            )
        pairs = list(zip(self._rules, map(_as_tensor, forward.added), strict=True))
        return Outputs(
            rows=self._functions.rows(forward),
            added_rows=[loss for rule, loss in pairs if rule == ROWS],
            added=[_part(shard, rule, loss) for rule, loss in pairs if rule != ROWS],
            state=self._state.of_shard(forward.changed, shard, piece.index, inputs.variables),
            # Training computes them again, in the backward pass.
            metrics=[] if self._training else [if_any(shard, m) for m in forward.metrics],
        )

    def of_shard(self, inputs: Inputs, piece: Piece) -> Outputs:
        """The outputs of one shard, without a borrowed example. Parts of sums get an axis more."""
        found = self.outputs(inputs, piece)
        return Outputs(
            counted(found.rows, piece),
            counted(found.added_rows, piece),
            *([t[tf.newaxis] for t in terms] for terms in found[2:]),
        )

    def after_call(self, inputs: Inputs, state: Sequence[tf.Tensor]) -> tuple[Inputs, Changed]:
        """The values of the variables after the forward pass of all shards, and the new ones.

        `state` has the sums of the state's terms.
        """
        changed = self._state.new_values(self._changed, state, inputs.variables)
        roles = self._roles

        def new(variables: Sequence[Any], values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
            pairs = zip(variables, values, strict=True)
            return [changed.get(id(v), value) for v, value in pairs]

        after = inputs._replace(
            trainable=new(roles.trainable, inputs.trainable), other=new(roles.other, inputs.other)
        )
        return after, changed

    def _loss(
        self,
        inputs: Inputs,
        whole: Piece,
        rows: Rows,
        added_rows: Sequence[tf.Tensor],
        added: Sequence[tf.Tensor],
    ) -> Loss:
        shard = self._functions.shard(whole)
        flat = [None if t is None else tf.identity(t) for t in rows[: len(rows) // 2]]
        leaves = [*flat, *map(tf.identity, added_rows), *map(tf.identity, added)]
        trainable = inputs.trainable if self._training else []
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            floats = [t for t in leaves if t is not None and t.dtype.is_floating]
            tape.watch([*trainable, *floats])
            outputs = self._functions.outputs_of([*flat, *rows[len(flat) :]])
            forward = self._functions.loss_of_outputs(
                inputs,
                whole,
                outputs,
                self._in_order(leaves[len(flat) :], len(added_rows)),
                shard,
                training=self._training,
                watch=tape.watch,
            )
            value = tf.convert_to_tensor(forward.loss)
            is_scaled = inputs.scale is not None
            scaled = value * tf.cast(inputs.scale, value.dtype) if is_scaled else value
        self._changed_by_loss = list(forward.changed)
        self._refuse_changed_twice()
        found: dict[int, Any] = {}
        direct: list[Any] = []
        if self._training:
            sources = [*trainable, *floats]
            every = gradients(tape, scaled, self._roles, sources, forward.changed)
            direct = every[: len(trainable)]
            pairs = zip(floats, every[len(trainable) :], strict=True)
            found = {id(leaf): gradient for leaf, gradient in pairs}
        of_leaves = [_dense(found.get(id(leaf)), leaf) for leaf in leaves]
        num_rows = len(flat) + len(added_rows)
        return Loss(
            value=value,
            of_rows=of_leaves[:num_rows],
            of_added=of_leaves[num_rows:],
            direct=[_dense(g, value) for g, value in zip(direct, trainable, strict=True)],
            changed=list(forward.changed.values()),
            metrics=list(forward.metrics),
        )

    def changed_by_loss(self, loss: Loss) -> Changed:
        """The new values of the variables that the loss changed, by their id."""
        return dict(zip(self._changed_by_loss, loss.changed, strict=True))

    def _backward(self, inputs: Inputs, piece: Piece, loss: Loss) -> list[tf.Tensor]:
        """The terms of a shard. The targets of `piece` are the gradients for its outputs.

        What the whole batch has only once counts in the last shard, which is never empty.
        """
        functions, shard = self._functions, self._functions.shard(piece)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(inputs.trainable)
            forward = functions.call(inputs, piece, shard, training=True, watch=tape.watch)
            pairs = list(zip(self._rules, map(_as_tensor, forward.added), strict=True))
            rows = [
                *tf.nest.flatten(forward.outputs),
                *(added for rule, added in pairs if rule == ROWS),
            ]
            parts = [_part(shard, rule, added) for rule, added in pairs if rule != ROWS]
        targets = list(zip([*rows, *parts], [*piece.y, *loss.of_added], strict=True))
        targets = [(target, if_any(shard, g)) for target, g in targets if g is not None]
        own, upstream = [t for t, _ in targets], [g for _, g in targets]
        found = gradients(tape, own, self._roles, inputs.trainable, forward.changed, upstream)
        is_last = tf.equal(piece.index, self._shards - 1)
        found = [_sum(a, b, is_last) for a, b in zip(found, loss.direct, strict=True)]
        metrics = [
            of_call + only_if(is_last, of_loss)
            for of_call, of_loss in zip(forward.metrics, loss.metrics, strict=True)
        ]
        changed = {**forward.changed, **self.changed_by_loss(loss)}
        both = replace(forward, changed=changed, metrics=tuple(metrics))
        value = weighted(shard, loss.value)
        return functions.terms.of_shard(value, found, both, shard, piece.index, inputs.variables)

    def _in_order(
        self, values: Sequence[tf.Tensor], num_rows: int
    ) -> list[tuple[keras.layers.Layer | None, tf.Tensor]]:
        """The losses by `add_loss` with their layers, in the order in which they were added."""
        rows, others = iter(values[:num_rows]), iter(values[num_rows:])
        found = [next(rows if rule == ROWS else others) for rule in self._rules]
        return list(zip(self._owners, found, strict=True))

    def _refuse_changed_twice(self) -> None:
        for key in self._changed_by_loss:
            if key in self._changed and self._state.rule(key) == SUM:
                paths = {id(v): v.path for v in (*self._roles.trainable, *self._roles.other)}
                raise KerasdistError(
                    f"The variable {paths[key]!r} is changed by `call`, where it adds up over "
                    "examples, and again by `compute_loss`. Expected one of them, if the loss "
                    "needs the whole batch. Use two variables, or `devices=1, shards=1`."
                )


def _as_tensor(loss: Any) -> tf.Tensor:
    return keras.ops.convert_to_tensor(loss)


def _part(shard: pure.Shard, rule: str, loss: tf.Tensor) -> tf.Tensor:
    """The part of a shard in a loss by `add_loss`: the parts add up to that of the whole batch."""
    return if_any(shard, loss if rule == SUM else weighted(shard, loss))


def _dense(gradient: Any, like: tf.Tensor | None) -> tf.Tensor | None:
    if gradient is None or like is None:
        return None
    dense = tf.convert_to_tensor(gradient)
    return dense if dense.shape == like.shape else tf.ensure_shape(dense, like.shape)


def _sum(of_shard: Any, direct: tf.Tensor | None, is_last: tf.Tensor) -> Any:
    if direct is None:
        return of_shard
    counted_once = only_if(is_last, wide(direct))
    return counted_once if of_shard is None else wide(tf.convert_to_tensor(of_shard)) + counted_once
