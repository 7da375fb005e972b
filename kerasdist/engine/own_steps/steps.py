"""One step of a model that has its own `train_step`, `test_step` or `predict_step`, on one replica.

Where the step takes gradients for weights, the shards and replicas meet: their gradients are added
up, and the step continues with those of the whole batch. If a replica runs one shard, that happens
in the middle of the step. If it runs several, the step runs again up to each such place, and then
to its end: what is not needed is not computed again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import tensorflow as tf

from kerasdist.devices.placement import Placement
from kerasdist.engine import finite
from kerasdist.engine.compiled_loop import NOT_FINITE, REACHED, StepResult
from kerasdist.engine.inference_steps import joined_rows, pieces_to_predict
from kerasdist.engine.own_steps.functions import StepFunctions, StepInputs
from kerasdist.engine.settings import Settings
from kerasdist.engine.shards import Cut, Number, Piece
from kerasdist.engine.state import Start, State, Values
from kerasdist.engine.sums import AddUpShards, Reduction, Sums
from kerasdist.engine.transfer.exchange import of_denominators, over_replicas
from kerasdist.engine.updates import average
from kerasdist.models import pure
from kerasdist.models.class_weights import weigh_batch
from kerasdist.models.fields import Example
from kerasdist.models.own_steps.plans import MEAN, RESULT, SAME, StepPlan


@dataclass(frozen=True)
class OwnParts:
    """What an own step needs besides the batch and the values of the variables."""

    model: keras.Model
    roles: pure.Parts
    placement: Placement
    settings: Settings
    state: State
    functions: StepFunctions
    add_up_shards: AddUpShards
    reduction: Reduction

    @property
    def plan(self) -> StepPlan:
        return self.functions.plan


@dataclass(frozen=True)
class Stepped:
    """A step on one replica, before its values are written.

    Attributes:
        own: What this replica adds to state, metrics and returned means.
        met: The gradients of the whole batch.
        same: New values that do not depend on the examples, by variable id.
        changed: All new values by variable id, if the batch was not cut.
        returned: The leaves of what the step returned, if they are known here.
    """

    own: list[tf.Tensor]
    met: list[tf.Tensor]
    same: dict[int, tf.Tensor]
    changed: dict[int, tf.Tensor] | None
    returned: dict[int, tf.Tensor]


def own_step(parts: OwnParts, replica: Number, batch: Any, start: Start) -> StepResult:
    """One own `train_step` or `test_step`, in the order it runs."""
    cut, inputs = _cut(parts, replica, batch), _inputs(start)

    # Run the step, with the gradients of the whole batch.
    is_direct = cut.shards == 1 or (cut.per_replica == 1 and not parts.settings.deterministic)
    stepped = (_directly if is_direct else _in_turns)(parts, cut, inputs)

    # Reduce: add up what the shards add to state and metrics. Then check and write.
    def finish(sums: Sums) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tuple[tf.Tensor, ...]]:
        new, logs, checked = _new_values(parts, stepped, sums, start, inputs)
        check = _check(checked, parts.placement)
        kept = _with_smaller_scales(parts, start)
        assign = partial(parts.state.assign, start=start)
        write = finite.writer(parts.state)
        flags, done = write(check, lambda: new, kept, assign)
        with parts.placement.host(), tf.control_dependencies(done):
            status = tf.where(check.finite, REACHED, NOT_FINITE)
        return status, _loss(parts.plan, logs), flags, tuple(logs)

    status, loss, flags, logs = parts.reduction.run(stepped.own, [], finish)
    return StepResult(status, cut.num_global, loss, flags, logs if parts.plan.needs_logs else ())


def own_predict_step(
    parts: OwnParts, replica: Number, batch: Any, start: Start
) -> tuple[Any, tf.Tensor]:
    """The outputs of an own `predict_step` for this replica's shard, and how many rows count."""
    batch, span = batch if parts.placement.has_parts else (batch, None)
    example = Example((batch,), batch, None, None)
    pieces = pieces_to_predict(parts.settings, parts.placement, example, replica, span)
    inputs = _inputs(start)
    results = [parts.functions.outputs(inputs, piece) for piece in pieces]
    rows, count = joined_rows(results, pieces)
    return tf.nest.pack_sequence_as(parts.plan.returned, rows), count


def _cut(parts: OwnParts, replica: Number, batch: Any) -> Cut:
    """The batch as the step takes it, cut into shards."""
    batch, span = batch if parts.placement.has_parts else (batch, None)
    if parts.settings.class_weight and parts.plan.method == "train_step":
        batch = weigh_batch(parts.model, batch, parts.settings.class_weight)
    example = Example((batch,), batch, None, None)
    return Cut.of_step(parts.settings, parts.placement, example, replica, span)


def _inputs(start: Start) -> StepInputs:
    stored = start.stored
    # Lists: on GPUs, optimizers' values are read when they are used.
    return StepInputs(
        list(start.trainable),
        list(stored["other"]),
        list(stored["optimizer"]),
        list(stored["metrics"]),
        start.seeds,
    )


def _denominators(parts: OwnParts, cut: Cut, inputs: StepInputs) -> list[tf.Tensor] | None:
    count = parts.plan.num_denominators
    if not count or cut.shards == 1:
        return None
    of_shard = partial(parts.functions.denominators, inputs)
    return of_denominators(cut, of_shard, count, parts.placement)


def _directly(parts: OwnParts, cut: Cut, inputs: StepInputs) -> Stepped:
    """One run, in which the replicas meet."""
    met: list[tf.Tensor] = []

    def meet(gradients: list[tf.Tensor]) -> list[tf.Tensor]:
        totals = over_replicas(gradients, parts.placement, fixed_order=False)
        met.extend(totals)
        return totals

    piece = cut.shard(0, _denominators(parts, cut, inputs))
    run = parts.functions.direct(inputs, piece, meet)
    same = dict(zip(parts.functions.same_keys, run.same, strict=True))
    changed = run.changed if cut.shards == 1 else None
    return Stepped(run.terms, met, same, changed, dict(enumerate(run.returned)))


def _in_turns(parts: OwnParts, cut: Cut, inputs: StepInputs) -> Stepped:
    """One run up to each place where the shards meet, and one to the end."""
    functions, placement = parts.functions, parts.placement
    denominators = _denominators(parts, cut, inputs)
    known: list[Sequence[tf.Tensor]] = []
    for number in range(len(parts.plan.meetings)):
        of_piece = partial(functions.gradients, number, inputs, tuple(known))
        own = _added_up(parts, cut, of_piece, denominators)
        fixed = parts.settings.deterministic
        known.append(tuple(over_replicas(own, placement, fixed_order=fixed)))

    def last(piece: Piece) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        return functions.finish(inputs, piece, tuple(known)), []

    own = _added_up(parts, cut, last, denominators) if _has_terms(parts) else []
    found = functions.same(inputs, cut.shard(0, denominators), tuple(known))
    keys = functions.same_keys
    places = [i for i, kind in enumerate(parts.plan.kinds) if kind == SAME]
    return Stepped(
        own,
        [gradient for meeting in known for gradient in meeting],
        dict(zip(keys, found[: len(keys)], strict=True)),
        None,
        dict(zip(places, found[len(keys) :], strict=True)),
    )


def _has_terms(parts: OwnParts) -> bool:
    plan = parts.plan
    return bool(parts.roles.metrics) or MEAN in plan.kinds or set(plan.changed) != set(plan.same)


def _added_up(
    parts: OwnParts,
    cut: Cut,
    of_piece: Callable[[Piece], tuple[list[tf.Tensor], list[tf.Tensor]]],
    denominators: Sequence[tf.Tensor] | None,
) -> list[tf.Tensor]:
    run_shard = cut.each(of_piece, denominators)
    totals, _ = parts.add_up_shards(run_shard, run_shard(0), cut.per_replica)
    return totals


def _new_values(
    parts: OwnParts, stepped: Stepped, sums: Sums, start: Start, inputs: StepInputs
) -> tuple[Values, list[tf.Tensor], list[tf.Tensor]]:
    """`(new values by role, what the step returns, what must be finite)`."""
    roles, functions = parts.roles, parts.functions
    if stepped.changed is not None:
        new = dict(stepped.changed)
        state = {k: v for k, v in new.items() if k not in parts.plan.same}
        metrics = [new.get(id(v)) for v in roles.metrics]
        logs = [stepped.returned[i] for i in range(len(parts.plan.kinds))]
    else:
        state, deltas, means = functions.split(sums.totals, inputs)
        new = {**stepped.same, **state}
        metrics = [v + d for v, d in zip(inputs.metrics, deltas, strict=True)]
        logs = _returned(parts, stepped, metrics, means)
    if parts.plan.method == "train_step":
        new[id(pure.step_counter(parts.model))] = start.step + 1
    values: dict[str, Any] = {
        role: [new.get(id(v)) for v in getattr(roles, role)]
        for role in ("trainable", "other", "optimizer")
    }
    values["metrics"] = metrics
    values["ema"] = start.stored["ema"]
    if parts.settings.ema is not None and parts.plan.method == "train_step":
        pairs = zip(values["trainable"], start.trainable, strict=True)
        weights = [old if value is None else value for value, old in pairs]
        values["ema"] = average(start.stored["ema"], weights, parts.settings.ema, start.step)
    metric_ids = {id(v) for v in roles.metrics}
    of_state = [v for k, v in state.items() if k not in metric_ids]
    return values, logs, [*stepped.met, *(v for v in of_state if v.dtype.is_floating)]


def _returned(
    parts: OwnParts, stepped: Stepped, metrics: Sequence[tf.Tensor], means: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """What the step returns for the whole batch."""
    rest = iter(means)
    leaves = []
    with keras.StatelessScope(list(zip(parts.roles.metrics, metrics, strict=True))):
        for i, (kind, spec) in enumerate(zip(parts.plan.kinds, parts.plan.leaves, strict=True)):
            if kind == RESULT:
                metric, number = parts.plan.results[i]
                value = tf.nest.flatten(metric.result())[number]
            else:
                value = next(rest) if kind == MEAN else stepped.returned[i]
            leaves.append(tf.cast(value, spec.dtype))
    return leaves


def _check(tensors: Sequence[tf.Tensor], placement: Placement) -> finite.Check:
    """Whether all gradients and the changed state are finite."""
    if not tensors:
        return finite.Check(placement.to_host(tf.constant(True)), lambda: tf.ones((1, 0), tf.bool))
    flags = [tf.reduce_all(tf.math.is_finite(t)) for t in tensors]
    stacked = tf.stack(flags)
    return finite.Check(placement.to_host(tf.reduce_all(stacked)), lambda: stacked[tf.newaxis])


def _with_smaller_scales(parts: OwnParts, start: Start) -> Values:
    """The values after a step that is not finite: loss scales are halved, the rest stays."""
    pairs = zip(map(id, parts.roles.optimizer), start.stored["optimizer"], strict=True)
    values: dict[int, Any] = dict(pairs)
    for optimizer in pure.optimizers_of(parts.model):
        _, scale, counter = pure.loss_scale(optimizer)
        if scale is not None and id(scale) in values:
            values[id(scale)] = values[id(scale)] * 0.5
            values[id(counter)] = tf.zeros_like(values[id(counter)])
    return {**start.stored, "optimizer": [values[id(v)] for v in parts.roles.optimizer]}


def _loss(plan: StepPlan, logs: Sequence[tf.Tensor]) -> tf.Tensor:
    """The value that is shown as the loss of a step: the one of that name, or the first loss."""
    place = plan.loss_place
    if place is None or place >= len(logs):
        return tf.constant(0.0, tf.float64)
    return tf.cast(logs[place], tf.float64)
