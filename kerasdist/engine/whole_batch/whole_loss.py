"""A loss over the whole batch: gather the outputs of all shards, compute the loss, then go back.

A contrastive loss compares the examples of a batch, so it cannot be computed on a shard. But only
the loss needs the whole batch at once. The layers do not. So a training step has three passes:

1. the forward pass of each shard, one after the other. It keeps the outputs, not the activations;
2. the loss on the outputs for the whole batch, and its gradients for these outputs;
3. the forward pass of each shard again, with the same random numbers, and its backward pass from
   these gradients.

The gradient is the same as if all activations were in memory at once (GradCache, Gao et al. 2021).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import tensorflow as tf

from kerasdist.devices.placement import Placement
from kerasdist.engine.settings import Settings
from kerasdist.engine.shard_functions import ShardFunctions
from kerasdist.engine.shards import Cut, Inputs, Number, Piece
from kerasdist.engine.sums import Changed, Rows, RunShard, ShardSums
from kerasdist.engine.terms import StateTerms, weighted
from kerasdist.engine.transfer.exchange import join_rows
from kerasdist.engine.whole_batch.functions import Loss, Outputs, WholeBatchFunctions
from kerasdist.models import pure
from kerasdist.models.fields import Example
from kerasdist.models.whole_batch.separation import Separation


class Gathered(NamedTuple):
    """The outputs of the whole batch, the same on each replica, and the loss on them.

    `added` is the sum of the losses by `add_loss`, if there are any. `changed` has new values of
    the variables that the forward passes or the loss changed.
    """

    rows: Rows
    metrics: list[tf.Tensor]
    added: tf.Tensor | None
    changed: Changed
    loss: Loss


@dataclass(frozen=True)
class WholeLoss:
    """Computes a loss over the whole batch on every replica. Called inside `strategy.run`."""

    functions: WholeBatchFunctions
    placement: Placement
    settings: Settings

    def gather(
        self, cut: Cut, inputs: Inputs, denominators: Sequence[tf.Tensor] | None
    ) -> Gathered:
        """Runs the forward pass of each shard, then the loss on the outputs of all of them."""
        functions, example = self.functions, cut.example
        run_shard = cut.each(partial(functions.of_shard, inputs), denominators)
        own = _in_order(run_shard, cut.per_replica)
        flat = tf.nest.flatten(own)
        joined = iter(join_rows([t for t in flat if t is not None], self.placement))
        found: Outputs = tf.nest.pack_sequence_as(
            own, [None if t is None else next(joined) for t in flat]
        )
        # The tables are the same on every replica and for every number of them: so are their sums.
        added, state, metrics = (
            [tf.reduce_sum(table, axis=0) for table in tables] for tables in found[2:]
        )
        after, changed = functions.after_call(inputs, state)
        with self.placement.host():
            number = tf.constant(cut.shards)
        parts = (example.args, example.y, example.sample_weight)
        whole = Piece(number, *parts, None, cut.num_global, None)
        loss = functions.loss(after, whole, found.rows, found.added_rows, added)
        every = [*found.added_rows, *added]
        total = tf.add_n([tf.reduce_sum(tf.cast(t, tf.float32)) for t in every]) if every else None
        changed |= functions.changed_by_loss(loss)
        return Gathered(found.rows, metrics, total, changed, loss)

    def of_step(
        self,
        cut: Cut,
        inputs: Inputs,
        denominators: Sequence[tf.Tensor] | None,
        *,
        replica: Number,
        span: tf.Tensor | None,
        observed: bool,
    ) -> tuple[RunShard, Rows]:
        """The function that goes back through a shard, and the outputs for the whole batch."""
        gathered = self.gather(cut, inputs, denominators)
        loss = gathered.loss._replace(of_rows=[])
        # The gradients for the outputs are cut like the batch, in the place of its targets.
        args, x = cut.example.args, cut.example.x
        example = Example(args, x, gathered.loss.of_rows, None)
        back = Cut.of_step(self.settings, self.placement, example, replica, span)

        def run(piece: Piece) -> ShardSums:
            # Otherwise TensorFlow would take the activations of the first pass and keep them. They
            # may stay if there are no other shards to compute in between.
            with tf.control_dependencies([loss.value] if cut.per_replica > 1 else []):
                terms = self.functions.backward(inputs, piece, loss)
            if observed and gathered.added is not None:
                shard = piece.shard(on_cpu=False)
                terms = [*terms, weighted(shard, gathered.added)]
            return terms, []

        return back.each(run, denominators), gathered.rows


class WholeLosses(NamedTuple):
    """How to compute losses over the whole batch. None where the loss adds up over shards."""

    to_train: WholeLoss | None
    to_test: WholeLoss | None

    @classmethod
    def of(
        cls, functions: ShardFunctions, roles: pure.Parts, settings: Settings, placement: Placement
    ) -> WholeLosses:
        def made(
            separation: Separation | None, rules: Mapping[int, str], training: bool
        ) -> WholeLoss | None:
            if separation is None:
                return None
            of_batch = WholeBatchFunctions(
                functions,
                roles,
                StateTerms(roles, rules),
                separation,
                training=training,
                shards=settings.shards,
            )
            return WholeLoss(of_batch, placement, settings)

        return cls(
            made(settings.whole_loss, settings.state_rules, True),
            made(settings.whole_test_loss, settings.test_state_rules, False),
        )

    @property
    def is_any(self) -> bool:
        return self != (None, None)


def _in_order(run_shard: Callable[[Number], Outputs], num_shards: int) -> Outputs:
    """Runs the shards one after the other, and joins what they return along the first axis."""
    first = run_shard(0)
    if num_shards == 1:
        return first
    flat = tf.nest.flatten(first)
    present = [t for t in flat if t is not None]
    # The loop waits for the first shard: otherwise both are in memory at once.
    with tf.control_dependencies(present):
        start, end = tf.identity(1), tf.constant(num_shards)

    def array(tensor: tf.Tensor) -> tf.TensorArray:
        shape = tf.TensorShape([None]).concatenate(tensor.shape[1:])
        return tf.TensorArray(
            tensor.dtype, size=num_shards - 1, infer_shape=False, element_shape=shape
        )

    def body(i: tf.Tensor, *arrays: tf.TensorArray) -> tuple[tf.Tensor | tf.TensorArray, ...]:
        found = [t for t in tf.nest.flatten(run_shard(i)) if t is not None]
        pairs = zip(arrays, found, strict=True)
        return i + 1, *(each.write(i - 1, tensor) for each, tensor in pairs)

    _, *arrays = tf.while_loop(
        lambda i, *_: i < end,
        body,
        (start, *(array(t) for t in present)),
        parallel_iterations=1,
    )
    joined = iter(
        tf.concat([tensor, rest.concat()], axis=0)
        for tensor, rest in zip(present, arrays, strict=True)
    )
    return tf.nest.pack_sequence_as(first, [None if t is None else next(joined) for t in flat])
