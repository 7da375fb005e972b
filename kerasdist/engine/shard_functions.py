"""What is computed on one shard of a batch: functions of tensors alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from kerasdist.engine import sums, updates
from kerasdist.engine.sealed import Sealed
from kerasdist.engine.shards import (
    Piece,
    Seeds,
    StateTerms,
    Terms,
    if_any,
    only_if,
    own_rows,
    weighted,
    with_masks,
)
from kerasdist.models import pure


class ShardFunctions:
    """Forward and backward pass, evaluation, and denominators of a shard.

    With `sealed`, every replica and worker calls one and the same compiled function (`Sealed`). The
    first four arguments are values of the trainable variables, of the other ones, the step, and the
    scale of the loss or None.
    """

    def __init__(
        self,
        model: keras.Model,
        roles: pure.Parts,
        *,
        seed: int,
        packed: bool,
        state_rules: Mapping[int, str],
        test_state_rules: Mapping[int, str],
        on_cpu: bool,
        gather_outputs: bool,
        sealed: bool,
        jit: bool,
    ):
        self._model, self._roles = model, roles
        self._seed, self._on_cpu, self._gather_outputs = seed, on_cpu, gather_outputs
        self.terms = Terms(roles, packed, StateTerms(roles, state_rules))
        self.test_state = StateTerms(roles, test_state_rules)
        self.metrics = sums.Packing.of(roles.natives("metrics"))
        self.changed_by_test: list[int] = []
        self.output_structure: Any = None
        seal: Callable = partial(Sealed, seed=seed) if sealed else lambda function: function
        self.train = Sealed(self._train, seed=seed, jit=True) if jit else seal(self._train)
        self.test = seal(self._test)
        self.denominators = {
            training: seal(partial(self._denominators, training)) for training in (True, False)
        }
        self.update_metrics = seal(self._update_metrics)

    def _forward(self, trainable, other, step, piece: Piece, shard: pure.Shard, **options: Any):
        seeds = Seeds(self._seed, step, len(self._roles.seeds)).of_shard(piece.index)
        state = (trainable, other, seeds)
        return pure.forward(self._model, self._roles, state, piece.example, shard=shard, **options)

    def _train(self, trainable, other, step, scale, piece: Piece):
        """`(terms that add up, the part of add_loss in the loss, rows of outputs)`."""
        shard = piece.shard(on_cpu=self._on_cpu)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(trainable)
            forward = self._forward(
                trainable,
                other,
                step,
                piece,
                shard,
                training=True,
                with_metrics=not self._gather_outputs,
                watch=tape.watch,
            )
            loss = weighted(shard, forward.loss)
            scaled = updates.scaled(loss, scale)
        gradients = updates.gradients(tape, scaled, self._roles, trainable, forward.changed)
        before = (*trainable, *other)
        terms = self.terms.join(loss, gradients, forward, shard, piece.index, before)
        return terms, _added(forward, shard), self._rows(forward.outputs, shard)

    def _test(self, trainable, other, step, scale, piece: Piece):
        """`(packed changes of the metrics, then changed state, rows of outputs)`."""
        shard = piece.shard(on_cpu=self._on_cpu)
        forward = self._forward(
            trainable,
            other,
            step,
            piece,
            shard,
            training=False,
            with_metrics=not self._gather_outputs,
        )
        terms = self.metrics.pack([if_any(shard, m) for m in forward.metrics])
        self.changed_by_test = list(forward.changed)
        before = (*trainable, *other)
        terms += self.test_state.of_shard(forward.changed, shard, piece.index, before)
        return terms, self._rows(forward.outputs, shard)

    def _denominators(self, training: bool, trainable, other, step, scale, piece: Piece):
        """The losses' own denominators (masks, sample weights). The rest is pruned."""
        shard = piece.shard(on_cpu=self._on_cpu, is_step=False)
        self._forward(trainable, other, step, piece, shard, training=training, with_metrics=False)
        return if_any(shard, tf.stack([tf.cast(d, tf.float64) for d in shard.local_denominators]))

    def _rows(self, outputs: Any, shard: pure.Shard) -> list:
        if not self._gather_outputs:
            return []
        self.output_structure = tf.nest.map_structure(lambda _: 0, outputs)
        return own_rows(outputs, shard)

    def _update_metrics(self, values: list, whole: Piece, outputs: list) -> list:
        """New values of the metrics, from the outputs for a whole batch."""
        outputs = with_masks(self.output_structure, outputs)
        return pure.update_metrics(self._model, self._roles, values, whole.example, outputs)


def _added(forward: pure.Forward, shard: pure.Shard) -> tf.Tensor | None:
    """A shard's part of the losses by `add_loss`, for summaries."""
    if not forward.added:
        return None
    whole = tf.add_n(
        [tf.reduce_sum(tf.cast(keras.ops.convert_to_tensor(t), tf.float32)) for t in forward.added]
    )
    return only_if(shard.num_examples > 0, tf.cast(shard.weight, tf.float32) * whole)
