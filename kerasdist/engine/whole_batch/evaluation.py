"""One step of an evaluation with a loss over the whole batch."""

from __future__ import annotations

from functools import partial
from typing import Any

import tensorflow as tf

from kerasdist.engine.compiled_loop import REACHED, StepResult
from kerasdist.engine.shards import Cut, Number
from kerasdist.engine.state import Start
from kerasdist.engine.sums import Deltas, Sums
from kerasdist.engine.train_step import StepParts
from kerasdist.engine.transfer.exchange import of_denominators
from kerasdist.engine.whole_batch.whole_loss import WholeLoss
from kerasdist.models.fields import read


def evaluate_whole(
    parts: StepParts,
    whole_loss: WholeLoss,
    replica: Number,
    batch: Any,
    start: Start,
    *,
    use_ema: bool,
) -> StepResult:
    """One batch of an evaluation, in the order it runs. See `evaluate_step`."""
    settings, functions = parts.settings, parts.functions

    # Read and cut the batch, as in training.
    batch, span = batch if parts.placement.has_parts else (batch, None)
    example = read(parts.model, batch)
    cut = Cut.of_step(settings, parts.placement, example, replica, span)
    count = settings.num_test_denominators
    of_shard = partial(functions.test_denominators, start.inputs)
    denominators = of_denominators(cut, of_shard, count, parts.placement) if count else None

    # Run the forward pass of each shard, then the loss on the outputs of all of them.
    gathered = whole_loss.gather(cut, start.inputs, denominators)

    # Write the metrics and the changed state. Replicas that share memory do it once.
    def finish(_: Sums) -> tf.Tensor:
        pairs = zip(gathered.metrics, gathered.loss.metrics, strict=True)
        deltas = Deltas([of_call + of_loss for of_call, of_loss in pairs], None)
        metrics = parts.metrics.new_values(start, deltas, example, gathered.rows)
        written = parts.state.assign({"metrics": metrics}, start)
        written += parts.state.assign_changed(gathered.changed, start, with_weights=not use_ema)
        with tf.control_dependencies(written):
            return tf.constant(REACHED) + 0

    # Every replica has all sums already. So there is nothing to add up but a number to wait for.
    status = parts.reduction.run([tf.zeros((1,))], [], finish)
    no_loss, no_flags = tf.constant(0.0, tf.float64), tf.ones((0, 0), tf.bool)
    return StepResult(status, cut.num_global, no_loss, no_flags)
