"""What is computed on one shard of a batch: functions of tensors only."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from kerasdist.devices.placement import Placement
from kerasdist.engine.compiled.random_seeds import Seed, of_generators
from kerasdist.engine.compiled.sealed import Sealed
from kerasdist.engine.packing import Packing
from kerasdist.engine.settings import Settings
from kerasdist.engine.shards import Inputs, Piece
from kerasdist.engine.sums import Changed, Deltas, Rows
from kerasdist.engine.terms import (
    StateTerms,
    Terms,
    gradients,
    if_any,
    only_if,
    weighted,
)
from kerasdist.engine.transfer.exchange import synchronization
from kerasdist.models import pure


class EvaluationTerms:
    """The terms of an evaluation: packed changes of the metrics, then changed state."""

    def __init__(self, roles: pure.Parts, state: StateTerms):
        self._packing, self._state = Packing.of(roles.natives("metrics")), state
        self._changed: list[int] = []

    def of_shard(
        self,
        forward: pure.Forward,
        shard: pure.Shard,
        index: tf.Tensor,
        before: Sequence[tf.Tensor],
    ) -> list[tf.Tensor]:
        self._changed = list(forward.changed)
        metrics = self._packing.pack([if_any(shard, metric) for metric in forward.metrics])
        return metrics + self._state.of_shard(forward.changed, shard, index, before)

    def split(
        self, sums: Sequence[tf.Tensor], before: Sequence[tf.Tensor]
    ) -> tuple[Deltas, Changed]:
        """Takes apart sums of what `of_shard` returned."""
        end = len(sums) - len(self._changed)
        metrics, state = sums[:end], sums[end:]
        deltas = Deltas(self._packing.unpack(metrics), metrics[0] if len(metrics) == 1 else None)
        return deltas, self._state.new_values(self._changed, state, before)


class ShardFunctions:
    """Forward and backward pass, evaluation, prediction, and denominators of a shard.

    In deterministic runs, every replica and worker calls one and the same compiled function
    (`Sealed`).
    """

    def __init__(
        self,
        model: keras.Model,
        roles: pure.Parts,
        settings: Settings,
        *,
        placement: Placement,
        seed: Seed,
        is_joined: bool,
        is_packed: bool,
    ):
        self._model, self._roles = model, roles
        self._is_jit, self._host = settings.jit, placement.host
        self._on_cpu = not placement.is_gpu
        self._gather_outputs = settings.gather_metrics
        self._output_structure: Any = None
        self._synchronization = synchronization(settings, placement)
        self.terms = Terms(
            roles,
            StateTerms(roles, settings.state_rules),
            packed=is_packed,
            joined=is_joined,
        )
        self.test_state = StateTerms(roles, settings.test_state_rules)
        self.evaluation_terms = EvaluationTerms(roles, self.test_state)
        sealed = partial(
            Sealed,
            seed=seed.value,
            on_draw=seed.note_trace,
            rows_of=rows_of,
            on_gpu=placement.is_gpu,
        )
        seal: Callable[..., Any] = sealed if settings.deterministic else lambda function: function
        # The CPUs of a process share a processor, so one of them compiles for all. GPUs cannot.
        compiled = partial(sealed, jit=True, device="CPU:0" if self._on_cpu else None)
        self.seal, self.compiled = seal, compiled if settings.jit else seal
        self.train = self.compiled(self._train)
        self.test = seal(self._test)
        self.predict = seal(self._predict)
        # Ids of the variables that a prediction changes. Its trace finds them.
        self.changed_by_prediction: list[int] = []
        self.train_denominators = seal(partial(self._denominators, True))
        self.test_denominators = seal(partial(self._denominators, False))
        self.update_metrics = seal(self._update_metrics)

    def train_shard(self, inputs: Inputs, piece: Piece) -> tuple[list[tf.Tensor], Rows]:
        """Forward and backward pass: the terms that add up, and the outputs that metrics need."""
        terms, _, rows = self.train(inputs, piece)
        return terms, counted(rows, piece) if rows else rows

    def observed_shard(self, inputs: Inputs, piece: Piece) -> tuple[list[tf.Tensor], Rows]:
        """As `train_shard`, with the losses by `add_loss` as one more term, if there are any."""
        terms, added, rows = self.train(inputs, piece)
        return (terms if added is None else [*terms, added]), counted(rows, piece) if rows else rows

    def _train(
        self, inputs: Inputs, piece: Piece
    ) -> tuple[list[tf.Tensor], tf.Tensor | None, Rows]:
        """`(terms, the part of add_loss in the loss, outputs)`."""
        shard = self._shard(piece, is_jit=self._is_jit)
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(inputs.trainable)
            forward = self._forward(inputs, piece, shard, training=True, watch=tape.watch)
            loss = weighted(shard, forward.loss)
            is_scaled = inputs.scale is not None
            scaled = loss * tf.cast(inputs.scale, loss.dtype) if is_scaled else loss
        found = gradients(tape, scaled, self._roles, inputs.trainable, forward.changed)
        terms = self.terms.of_shard(loss, found, forward, shard, piece.index, inputs.variables)
        added = _added(forward, shard) if forward.added else None
        return terms, added, self.rows(forward) if self._gather_outputs else []

    def _test(self, inputs: Inputs, piece: Piece) -> tuple[list[tf.Tensor], Rows]:
        """`(terms, outputs)` of an evaluation."""
        shard = self._shard(piece)
        forward = self._forward(inputs, piece, shard, training=False)
        terms = self.evaluation_terms.of_shard(forward, shard, piece.index, inputs.variables)
        rows = self.rows(forward) if self._gather_outputs else []
        return terms, counted(rows, piece) if rows else rows

    def _denominators(self, training: bool, inputs: Inputs, piece: Piece) -> tf.Tensor:
        """What the losses divide by (masks, sample weights).

        As a rule it depends on data and not on weights. TensorFlow drops the rest of this pass.
        """
        shard = self._shard(piece, is_step=False)
        self._forward(inputs, piece, shard, training=training, with_metrics=False)
        return if_any(shard, tf.stack([tf.cast(d, tf.float64) for d in shard.local_denominators]))

    def _predict(self, inputs: Inputs, piece: Piece) -> tuple[Any, list[tf.Tensor]]:
        """`(outputs, terms of the state that call changes)`."""
        *seeds, _ = self._seeds(inputs, piece)
        state = (inputs.trainable, inputs.other, seeds)
        forward = pure.predict(self._model, self._roles, state, piece.example)
        self.changed_by_prediction = list(forward.changed)
        shard = piece.shard(on_cpu=False)
        changed = forward.changed
        terms = self.test_state.of_shard(changed, shard, piece.index, inputs.variables)
        return forward.outputs, terms

    def _shard(self, piece: Piece, **options: bool) -> pure.Shard:
        shard = piece.shard(on_cpu=self._on_cpu, **options)
        shard.add_up_replicas, shard.synchronizes_all = self._synchronization
        return shard

    # For a loss over the whole batch: the same pass in two parts.

    def shard(self, piece: Piece) -> pure.Shard:
        return self._shard(piece, is_jit=self._is_jit)

    def call(
        self,
        inputs: Inputs,
        piece: Piece,
        shard: pure.Shard,
        *,
        training: bool,
        watch: Callable[[tf.Tensor], None] | None = None,
    ) -> pure.Forward:
        """Runs the model without its loss and the metrics of its outputs."""
        options: dict[str, Any] = {"training": training, "watch": watch}
        return self._forward(inputs, piece, shard, with_loss=False, with_metrics=False, **options)

    def loss_of_outputs(
        self,
        inputs: Inputs,
        whole: Piece,
        outputs: Any,
        added: Sequence[tuple[keras.layers.Layer | None, tf.Tensor]],
        shard: pure.Shard,
        *,
        training: bool,
        watch: Callable[[tf.Tensor], None],
    ) -> pure.Forward:
        """Runs the loss alone, on the outputs for a whole batch."""
        *seeds, shard.draw_seed = self._seeds(inputs, whole)
        return pure.loss_of_outputs(
            self._model,
            self._roles,
            (inputs.trainable, inputs.other, seeds),
            whole.example,
            outputs,
            added,
            shard=shard,
            training=training,
            watch=watch,
        )

    def _forward(
        self,
        inputs: Inputs,
        piece: Piece,
        shard: pure.Shard,
        *,
        training: bool,
        with_metrics: bool = True,
        with_loss: bool = True,
        watch: Callable[[tf.Tensor], None] | None = None,
    ) -> pure.Forward:
        *seeds, shard.draw_seed = self._seeds(inputs, piece)
        return pure.forward(
            self._model,
            self._roles,
            (inputs.trainable, inputs.other, seeds),
            piece.example,
            shard=shard,
            training=training,
            with_metrics=with_metrics and not self._gather_outputs,
            with_loss=with_loss,
            watch=watch,
        )

    def _seeds(self, inputs: Inputs, piece: Piece) -> list[tf.Tensor]:
        # XLA compiles for one device only.
        host = contextlib.nullcontext if self._is_jit else self._host
        # One more than there are generators, for `tf.random`.
        count = len(self._roles.seeds) + 1
        return of_generators(inputs.seeds, piece.index, count, host)

    def rows(self, forward: pure.Forward) -> Rows:
        """The outputs, then their masks."""
        self._output_structure = tf.nest.map_structure(lambda _: 0, forward.outputs)
        flat = tf.nest.flatten(forward.outputs)
        masks = [None if t is None else pure.get_mask(t) for t in flat]
        return [*flat, *masks]

    def outputs_of(self, rows: Rows) -> Any:
        """The outputs with their masks, in the structure that the model gave them."""
        half = len(rows) // 2
        for tensor, mask in zip(rows[:half], rows[half:], strict=True):
            if mask is not None:
                pure.set_mask(tensor, mask)
        return tf.nest.pack_sequence_as(self._output_structure, rows[:half])

    def _update_metrics(
        self, values: Sequence[tf.Tensor], whole: Piece, rows: Rows
    ) -> list[tf.Tensor]:
        """New values of the metrics, from the outputs for a whole batch and their masks."""
        half = len(rows) // 2
        flat = [None if t is None else tf.identity(t) for t in rows[:half]]
        outputs = self.outputs_of([*flat, *rows[half:]])
        return pure.update_metrics(self._model, self._roles, values, whole.example, outputs)


def rows_of(*args: Any) -> list[Any]:
    """The tensors with one row per example, among the arguments of a sealed function."""
    return [(p.args, p.y, p.sample_weight) for p in args if isinstance(p, Piece)]


def counted(rows: Rows, piece: Piece) -> Rows:
    """Outputs without the borrowed example of an empty shard.

    Not in a function that XLA compiles: it would be compiled again for each number of examples.
    """
    if piece.num_examples is None:
        return rows
    return [None if t is None else t[: piece.num_examples] for t in rows]


def _added(forward: pure.Forward, shard: pure.Shard) -> tf.Tensor:
    """The shard's part of the losses by `add_loss`, for summaries."""
    whole = tf.add_n(
        [tf.reduce_sum(tf.cast(keras.ops.convert_to_tensor(t), tf.float32)) for t in forward.added]
    )
    return only_if(shard.num_examples > 0, tf.cast(shard.weight, tf.float32) * whole)
