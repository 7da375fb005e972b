"""A model's own step on one shard, as functions of tensors only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from kerasdist.devices.placement import Placement
from kerasdist.engine.compiled.random_seeds import OfStep, Seed, of_generators
from kerasdist.engine.compiled.sealed import Sealed
from kerasdist.engine.settings import Settings
from kerasdist.engine.shard_functions import rows_of
from kerasdist.engine.shards import Piece
from kerasdist.engine.sums import Changed
from kerasdist.engine.terms import StateTerms, if_any, weighted, wide
from kerasdist.engine.transfer.exchange import synchronization
from kerasdist.engine.updates import clip
from kerasdist.models import pure
from kerasdist.models.own_steps.plans import MEAN, SAME, StepPlan

# The gradients of the whole batch, for each time that a step takes gradients.
Known = Sequence[Sequence[tf.Tensor]]


class StepInputs(NamedTuple):
    """The values of all variables at the start of a step, by role, and its seeds."""

    trainable: Sequence[tf.Tensor]
    other: Sequence[tf.Tensor]
    optimizer: Sequence[tf.Tensor]
    metrics: Sequence[tf.Tensor]
    seeds: OfStep

    @property
    def variables(self) -> tuple[tf.Tensor, ...]:
        """The values of all variables that a forward pass may change."""
        return (*self.trainable, *self.other)


class Run(NamedTuple):
    """One run of a step on one shard.

    Attributes:
        terms: What adds up over shards: changed state, metrics, returned means.
        same: The new values that all shards share, in the order of `plan.same_keys`.
        returned: The leaves that the step returned.
        changed: All new values, by variable id.
    """

    terms: list[tf.Tensor]
    same: list[tf.Tensor]
    returned: list[tf.Tensor]
    changed: Changed


class _LeftError(BaseException):
    """Leaves a step where it takes gradients. A `BaseException`: a step may catch others."""

    def __init__(self, gradients: list[tf.Tensor]):
        super().__init__()
        self.gradients = gradients


class StepFunctions:
    """A step on a shard, with gradients of the whole batch where the step takes gradients.

    `gradients(n, ...)` runs the step up to the n-th time that it takes gradients, and `finish` to
    its end. What they do not need is not computed: TensorFlow drops it. In deterministic runs,
    every replica and worker calls the same compiled functions (`Sealed`).
    """

    def __init__(
        self,
        model: keras.Model,
        roles: pure.Parts,
        settings: Settings,
        plan: StepPlan,
        placement: Placement,
        seed: Seed,
    ):
        self._model, self._roles, self.plan = model, roles, plan
        self._settings, self._placement = settings, placement
        self._metrics = pure.metrics_of(model)
        self._state = StateTerms(roles, {})
        self._changed: list[int] = []
        self._synchronization = synchronization(settings, placement)
        sealed = partial(
            Sealed,
            seed=seed.value,
            on_draw=seed.note_trace,
            rows_of=rows_of,
            on_gpu=placement.is_gpu,
        )
        seal: Callable[..., Any] = sealed if settings.deterministic else lambda function: function
        self._gradients = [seal(partial(self._up_to, n)) for n in range(len(plan.meetings))]
        self.finish = seal(self._finish)
        self.same = seal(self._same)
        self.denominators = seal(self._denominators)
        self.outputs = seal(self._outputs)

    @property
    def is_whole(self) -> bool:
        """Whether a shard is the whole batch. Then the step runs as in Keras."""
        return self._settings.shards == 1

    @property
    def same_keys(self) -> list[int]:
        """Ids of the variables whose new values do not depend on the examples."""
        return [key for key in self.plan.changed if key in self.plan.same]

    def gradients(
        self, number: int, inputs: StepInputs, known: Known, piece: Piece
    ) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
        """The shard's part of the gradients that the step takes the `number`-th time."""
        return self._gradients[number](inputs, piece, known), []

    def direct(self, inputs: StepInputs, piece: Piece, meet: Callable[..., Any]) -> Run:
        """The whole step, in which `meet` adds up gradients over the replicas."""

        def over_shards(gradients: pure.Gradients, _: Sequence[str]) -> pure.Gradients:
            own = self._weighted(gradients, shard)
            totals = iter(meet(own))
            return [None if g is None else tf.cast(next(totals), g.dtype) for g in gradients]

        shard = self._shard(piece)
        return self._as_run(self._stepped(inputs, piece, shard, over_shards), shard, inputs, piece)

    def _finish(self, inputs: StepInputs, piece: Piece, known: Known) -> list[tf.Tensor]:
        """What the step adds to state, metrics and returned means, if the gradients are known."""
        return self._run(inputs, piece, known).terms

    def _same(self, inputs: StepInputs, piece: Piece, known: Known) -> list[tf.Tensor]:
        """The new values that do not depend on the examples. They are the same on all shards."""
        run = self._run(inputs, piece, known)
        pairs = zip(run.returned, self.plan.kinds, strict=True)
        return [*run.same, *(leaf for leaf, kind in pairs if kind == SAME)]

    def _outputs(self, inputs: StepInputs, piece: Piece) -> list[tf.Tensor]:
        """What a `predict_step` returns."""
        return self.direct(inputs, piece, lambda gradients: gradients).returned

    def _run(self, inputs: StepInputs, piece: Piece, known: Known) -> Run:
        shard = self._shard(piece)
        rest = iter(known)

        def from_known(gradients: pure.Gradients, _: Sequence[str]) -> pure.Gradients:
            totals = iter(next(rest))
            return [None if g is None else tf.cast(next(totals), g.dtype) for g in gradients]

        return self._as_run(self._stepped(inputs, piece, shard, from_known), shard, inputs, piece)

    def _up_to(
        self, number: int, inputs: StepInputs, piece: Piece, known: Known
    ) -> list[tf.Tensor]:
        shard = self._shard(piece)
        rest = iter(known)

        def leave(gradients: pure.Gradients, _: Sequence[str]) -> pure.Gradients:
            totals = next(rest, None)
            if totals is None:
                raise _LeftError(self._weighted(gradients, shard))
            each = iter(totals)
            return [None if g is None else tf.cast(next(each), g.dtype) for g in gradients]

        try:
            self._stepped(inputs, piece, shard, leave)
        except _LeftError as left:
            return left.gradients
        raise RuntimeError(f"the step took gradients {number} times only")

    def _denominators(self, inputs: StepInputs, piece: Piece) -> tf.Tensor:
        """What the losses divide by. As a rule it depends on the data only."""
        shard = self._shard(piece, is_step=False)
        self._stepped(inputs, piece, shard, lambda gradients, _: gradients)
        found = [if_any(shard, tf.cast(d, tf.float64)) for d in shard.local_denominators]
        return tf.stack(found)

    def _shard(self, piece: Piece, *, is_step: bool = True) -> pure.Shard:
        shard = piece.shard(on_cpu=not self._placement.is_gpu, is_step=is_step)
        shard.add_up_replicas, shard.synchronizes_all = self._synchronization
        shard.later_weight = shard.weight
        return shard

    def _weighted(self, gradients: pure.Gradients, shard: pure.Shard) -> list[tf.Tensor]:
        present = [tf.convert_to_tensor(g) for g in gradients if g is not None]
        return [if_any(shard, weighted(shard, wide(g))) for g in present]

    def _stepped(
        self, inputs: StepInputs, piece: Piece, shard: pure.Shard, meet: Callable[..., Any]
    ) -> pure.Stepped:
        roles, settings = self._roles, self._settings
        count = len(roles.seeds) + 1
        seeds = of_generators(inputs.seeds, piece.index, count, self._placement.host)
        metrics = inputs.metrics
        if not self.is_whole:  # They start from zero: the results are what the shard adds.
            metrics = [tf.zeros_like(value) for value in metrics]
        values = [
            *zip(roles.trainable, inputs.trainable, strict=True),
            *zip(roles.other, inputs.other, strict=True),
            *zip(roles.optimizer, inputs.optimizer, strict=True),
            *zip(roles.metrics, metrics, strict=True),
            *zip(roles.seeds, seeds[:-1], strict=True),
        ]
        call = pure.Call(
            self.plan.method, shard, seeds[-1], meet, partial(clip, max_norm=settings.clip_norm)
        )
        (data,) = piece.args
        return pure.run_step(self._model, values, data, call, self._metrics)

    def _as_run(
        self, stepped: pure.Stepped, shard: pure.Shard, inputs: StepInputs, piece: Piece
    ) -> Run:
        changed, same = stepped.changed, set(self.same_keys)
        metrics = {id(v) for v in self._roles.metrics}
        own = {k: v for k, v in changed.items() if k not in same and k not in metrics}
        self._changed = list(own)
        leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(stepped.returned)]
        terms: list[tf.Tensor] = []
        if not self.is_whole:
            zeros = {id(v): tf.zeros(v.shape, v.dtype) for v in self._roles.metrics}
            deltas = [changed.get(id(v), zeros[id(v)]) for v in self._roles.metrics]
            means = [
                weighted(shard, wide(_floating(leaf)))
                for leaf, kind in zip(leaves, self.plan.kinds, strict=True)
                if kind == MEAN
            ]
            terms = [
                *self._state.of_shard(own, shard, piece.index, inputs.variables),
                *(if_any(shard, delta) for delta in deltas),
                *(if_any(shard, mean) for mean in means),
            ]
        return Run(terms, [changed[key] for key in self.same_keys], leaves, changed)

    def split(
        self, totals: Sequence[tf.Tensor], inputs: StepInputs
    ) -> tuple[Changed, list[tf.Tensor], list[tf.Tensor]]:
        """Takes apart sums of `terms`: changed state, changes of metrics, returned means."""
        end = len(self._changed)
        state = self._state.new_values(self._changed, totals[:end], inputs.variables)
        last = end + len(self._roles.metrics)
        return state, list(totals[end:last]), list(totals[last:])


def _floating(tensor: tf.Tensor) -> tf.Tensor:
    return tensor if tensor.dtype.is_floating else tf.cast(tensor, keras.config.floatx())
