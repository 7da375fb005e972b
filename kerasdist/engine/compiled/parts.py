"""Chooses the parts of a step: where there is a plain and a quick way, the one that suits."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import keras
import tensorflow as tf

from kerasdist.devices.placement import Placement
from kerasdist.engine import finite, sums, updates
from kerasdist.engine.compiled_loop import StepResult
from kerasdist.engine.settings import Settings
from kerasdist.engine.shard_functions import ShardFunctions
from kerasdist.engine.state import State
from kerasdist.engine.train_step import Details, StepParts, train_step
from kerasdist.engine.transfer import exchange
from kerasdist.engine.whole_batch.whole_loss import WholeLosses
from kerasdist.models import pure


def vectors(
    model: keras.Model, roles: pure.Parts, placement: Placement, settings: Settings
) -> pure.Joined | None:
    """Vectors of the variables of a small model, if settings, devices and optimizer allow.

    They round differently from single variables. So deterministic runs do not use them: their
    bits must match those of workers, which have copies of each variable.
    """
    is_plain = settings.joins and not (settings.deterministic or settings.own_steps)
    if not is_plain or placement.has_copies:
        return None
    held = (*roles.trainable, *roles.other, *roles.optimizer)
    if sum(math.prod(v.shape) for v in held) > sums.SMALL:
        return None
    with tf.device(placement.names[0]):
        return pure.join(model.optimizer, roles)


def step_parts(
    model: keras.Model,
    roles: pure.Parts,
    placement: Placement,
    settings: Settings,
    state: State,
    functions: ShardFunctions,
) -> StepParts:
    """The parts that training, evaluation and prediction share."""
    deterministic, host = settings.deterministic, placement.host
    whole = WholeLosses.of(functions, roles, settings, placement)
    add_up_shards: sums.AddUpShards = partial(sums.looped, fixed_order=deterministic, host=host)
    metrics: updates.Metrics = updates.SummedMetrics()
    if settings.needs_whole:
        add_up_shards = add_up_shards if whole.is_any else sums.unrolled
        metrics = updates.GatheredMetrics(state, functions.update_metrics)
    elif state.is_vector("metrics"):
        metrics = updates.VectorMetrics(state)
    return StepParts(
        model=model,
        placement=placement,
        settings=settings,
        state=state,
        functions=functions,
        add_up_shards=add_up_shards,
        reduction=exchange.reduction(placement, fixed_order=deterministic),
        metrics=metrics,
        whole=whole,
    )


def training(
    parts: StepParts, roles: pure.Parts, joined: pure.Joined | None
) -> Callable[..., tuple[StepResult, Details]]:
    """`train_step` with its parts. Only training needs them: they need an optimizer."""
    settings, state = parts.settings, parts.state
    optimizer = updates.Optimizer.of(parts.model.optimizer, roles, settings)
    plain = updates.PlainUpdate(optimizer)
    weights: updates.Update = plain
    if joined is not None:
        of_vectors = updates.Optimizer.of(joined.optimizer, joined.roles, settings)
        weights = updates.VectorUpdate(of_vectors, plain, state)
    elif state.is_updated_in_place:
        fused = None if parts.placement.is_gpu else pure.Fused()
        weights = updates.InPlaceUpdate(optimizer, state, fused)
    update = updates.StepUpdate(roles, optimizer, weights, parts.metrics)
    return partial(train_step, parts, update, finite.writer(state))
