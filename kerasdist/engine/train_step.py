"""One training step on one replica: from a batch to new weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from kerasdist.devices.placement import Placement
from kerasdist.engine import finite
from kerasdist.engine.compiled_loop import NOT_FINITE, REACHED, StepResult
from kerasdist.engine.settings import Settings
from kerasdist.engine.shard_functions import ShardFunctions
from kerasdist.engine.shards import Cut, Number
from kerasdist.engine.state import Start, State
from kerasdist.engine.sums import AddUpShards, Reduction, Sums
from kerasdist.engine.transfer.exchange import of_denominators
from kerasdist.engine.updates import Gradients, Metrics, StepUpdate
from kerasdist.engine.whole_batch.whole_loss import WholeLosses
from kerasdist.models.class_weights import weigh_classes
from kerasdist.models.fields import read


class Details(NamedTuple):
    """What a summary shows of a step besides its result.

    `own` has the sums of this replica. `added` has the losses by `add_loss`, if the step was
    observed and there are any.
    """

    own: list[tf.Tensor]
    added: list[tf.Tensor]
    gradients: Gradients


@dataclass(frozen=True)
class StepParts:
    """The parts that training, evaluation and prediction share.

    Where a part has a plain and a quick way, this is the one that suits the model and the devices.
    """

    model: keras.Model
    placement: Placement
    settings: Settings
    state: State
    functions: ShardFunctions
    add_up_shards: AddUpShards
    reduction: Reduction
    metrics: Metrics
    whole: WholeLosses


def train_step(
    parts: StepParts,
    update: StepUpdate,
    write: finite.Write,
    replica: Number,
    batch: Any,
    start: Start,
    *,
    observed: bool = False,
) -> tuple[StepResult, Details]:
    """One step on one replica, in the order it runs."""
    settings, functions, terms = parts.settings, parts.functions, parts.functions.terms

    # Read the batch as the model takes it. A part of a batch comes with its place in the whole.
    batch, span = batch if parts.placement.has_parts else (batch, None)
    example = read(parts.model, batch)
    if settings.class_weight:
        example = weigh_classes(example, settings.class_weight)

    # Cut the batch into shards. Each replica runs its own shards.
    cut = Cut.of_step(settings, parts.placement, example, replica, span)
    count = settings.num_denominators
    denominators_of = partial(functions.train_denominators, start.inputs)
    denominators = of_denominators(cut, denominators_of, count, parts.placement) if count else None

    # Run the forward and backward pass of each shard, and add up the results.
    shard = functions.observed_shard if observed else functions.train_shard
    run_shard, whole_rows = cut.each(partial(shard, start.inputs), denominators), None
    if parts.whole.to_train is not None:  # Run all forward passes and the loss first.
        run_shard, whole_rows = parts.whole.to_train.of_step(
            cut, start.inputs, denominators, replica=replica, span=span, observed=observed
        )
    own, rows = parts.add_up_shards(run_shard, run_shard(0), cut.per_replica)
    own, added = own[: terms.length], own[terms.length :]
    own_flags = finite.own_flags(own, terms, start) if parts.placement.has_copies else None

    # Reduce: add up over the replicas (below), then finish the step with these sums.
    def finish(sums: Sums) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, Gradients]:
        totals = terms.split_totals(sums.totals, start.inputs)
        # Check: a step that is not finite is not written.
        check = finite.check(totals, sums, terms, start, own_flags, parts.placement.to_host)
        # Clip the gradients, update weights, averages and metrics, and write them.
        outputs = sums.rows if whole_rows is None else whole_rows
        new_values = partial(update.new_values, totals, start, example, outputs)
        is_scaled = start.scale is not None
        kept = update.optimizer.with_smaller_scale(start) if is_scaled else start.stored
        assign = partial(parts.state.assign, start=start)
        flags, done = write(check, new_values, kept, assign)
        with parts.placement.host(), tf.control_dependencies(done):
            status = tf.where(check.finite, REACHED, NOT_FINITE)
        return status, tf.cast(totals.loss, tf.float64), flags, totals.gradients

    status, loss, flags, gradients = parts.reduction.run(own, rows, finish)
    return StepResult(status, cut.num_global, loss, flags), Details(own, added, gradients)
