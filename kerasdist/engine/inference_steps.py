"""One step of an evaluation or a prediction on one replica: a forward pass without an update.

Models that draw random numbers draw other ones for each batch and each call.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.devices.placement import HOST, Placement
from kerasdist.engine.compiled_loop import REACHED, StepResult
from kerasdist.engine.settings import Settings
from kerasdist.engine.shards import Cut, Number, Piece
from kerasdist.engine.state import Start
from kerasdist.engine.sums import Sums, pairwise
from kerasdist.engine.train_step import StepParts
from kerasdist.engine.transfer.exchange import of_denominators
from kerasdist.engine.whole_batch.evaluation import write_whole
from kerasdist.models.fields import Example, read
from kerasdist.models.tensors.composites import is_sparse, rows_of

# Batches of a call that have numbers of their own. Calls that follow each other are as far apart.
_BATCHES = 2**24


def evaluate_step(
    parts: StepParts, replica: Number, batch: Any, start: Start, *, use_ema: bool
) -> StepResult:
    """One batch of an evaluation, in the order it runs.

    With `use_ema`, `start` has the moving averages in place of the weights: these are not written.
    """
    settings, functions = parts.settings, parts.functions

    # Read and cut the batch, as in training.
    batch, span = batch if parts.placement.has_parts else (batch, None)
    example = read(parts.model, batch)
    cut = Cut.of_step(settings, parts.placement, example, replica, span)
    count = settings.num_test_denominators
    of_shard = partial(functions.test_denominators, start.inputs)
    denominators = of_denominators(cut, of_shard, count, parts.placement) if count else None

    if parts.whole.to_test is not None:
        # Run the forward pass of each shard, then the loss on the outputs of all of them.
        status = write_whole(
            parts.whole.to_test.gather(cut, start.inputs, denominators),
            example,
            start,
            state=parts.state,
            reduction=parts.reduction,
            metrics=parts.metrics,
            use_ema=use_ema,
        )
        return _result(status, cut)

    # Run the forward pass of each shard, and add up the results.
    run_shard = cut.each(partial(functions.test, start.inputs), denominators)
    own, rows = parts.add_up_shards(run_shard, run_shard(0), cut.per_replica)

    # Reduce: add up over the replicas (below), then write the metrics and the changed state.
    def finish(sums: Sums) -> tf.Tensor:
        deltas, changed = functions.evaluation_terms.split(sums.totals, start.inputs.variables)
        metrics = parts.metrics.new_values(start, deltas, example, sums.rows)
        written = parts.state.assign({"metrics": metrics}, start)
        written += parts.state.assign_changed(changed, start, with_weights=not use_ema)
        with tf.control_dependencies(written):
            return tf.constant(REACHED) + 0

    return _result(parts.reduction.run(own, rows, finish), cut)


def _result(status: tf.Tensor, cut: Cut) -> StepResult:
    no_loss, no_flags = tf.constant(0.0, tf.float64), tf.ones((0, 0), tf.bool)
    return StepResult(status, cut.num_global, no_loss, no_flags)


def predict_step(
    parts: StepParts, replica: Number, batch: Any, start: Start
) -> tuple[Any, tf.Tensor]:
    """The outputs for this replica's shards, and how many of their rows count."""
    # Read and cut the batch. Targets are not needed.
    batch, span = batch if parts.placement.has_parts else (batch, None)
    example = read(parts.model, batch, need_targets=False)
    example = Example(example.args, example.x, None, None)
    pieces = pieces_to_predict(parts.settings, parts.placement, example, replica, span)

    # Run the forward pass. Most models change nothing in it.
    results = [parts.functions.predict(start.inputs, piece) for piece in pieces]
    outputs, count = joined_rows([outputs for outputs, _ in results], pieces)
    changed = parts.functions.changed_by_prediction
    if not changed:
        return outputs, count

    # Reduce: add up over the shards and replicas (below), then write the changed state.
    before, state_terms = start.inputs.variables, parts.functions.test_state
    own = [pairwise(column) for column in zip(*(terms for _, terms in results), strict=True)]

    def finish(sums: Sums) -> tf.Tensor:
        new = state_terms.new_values(changed, sums.totals, before)
        with tf.control_dependencies(parts.state.assign_changed(new, start)):
            return tf.constant(REACHED) + 0

    with tf.control_dependencies([parts.reduction.run(own, [], finish)]):
        return tf.nest.map_structure(tf.identity, outputs), tf.identity(count)


def pieces_to_predict(
    settings: Settings, placement: Placement, example: Example, replica: Number, span: Any
) -> list[Piece]:
    """One shard per replica. If bits must not depend on the devices, all shards of the replica."""
    shards = settings.shards if settings.deterministic else placement.num_replicas
    cut = Cut(example, shards, placement, replica, span)
    return [cut.shard(i) for i in range(cut.per_replica)]


def joined_rows(outputs: list[Any], pieces: list[Piece]) -> tuple[Any, tf.Tensor]:
    """The outputs of several shards in a row, and how many rows count."""
    shards = [piece.shard(on_cpu=False) for piece in pieces]
    if len(outputs) == 1:
        return outputs[0], tf.convert_to_tensor(shards[0].num_examples)

    def join(*parts: Any) -> Any:
        own = [rows_of(p, 0, s.num_examples) for p, s in zip(parts, shards, strict=True)]
        return tf.sparse.concat(0, own) if is_sparse(own[0]) else tf.concat(own, axis=0)

    count = tf.add_n([tf.cast(shard.num_examples, tf.int64) for shard in shards])
    return tf.nest.map_structure(join, *outputs), count


class Draws:
    """Numbers the batches of models that draw random numbers without training.

    The seeds of a batch depend on its number. Training steps have the numbers from 0 on, so these
    are below 0.

    Args:
        generators: The states of the `keras.random.SeedGenerator`s that are drawn from. Without
            them, every batch has the same number and nothing is computed for it.
        placement: The devices.
    """

    def __init__(self, generators: Sequence[keras.Variable], placement: Placement):
        self._generators, self._placement = generators, placement
        self._number: tf.Variable | None = None
        if generators:
            with tf.device(HOST):
                self._number = tf.Variable(0, dtype=tf.int64, trainable=False)

    def begin(self, call: int | None = None) -> None:
        """Begins a call of `evaluate` or `predict`, or a validation.

        Args:
            call: A number of the call. By default it comes from the states of the generators. As in
                Keras, they change with each call, so that the next one draws other numbers.
        """
        if self._number is None:
            return
        if call is None:
            (call,) = self._placement.of_chief(self._next_call())
        self._number.assign(-call * _BATCHES)

    def next(self) -> tf.Tensor:
        """The number of the next batch, inside a compiled function."""
        if self._number is None:
            return tf.constant(0, tf.int64)
        with tf.device(HOST):
            return self._number.assign_sub(1, read_value=True).read_value()

    def _next_call(self) -> int:
        digest = hashlib.sha256()
        for state in self._generators:
            value = np.asarray(state.numpy())
            digest.update(value.tobytes())
            state.assign(value + np.asarray([0, 1], value.dtype))  # As a draw of Keras.
        return int.from_bytes(digest.digest()[:4], "big")
