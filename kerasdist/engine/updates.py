"""From sums to new values: clipping, the optimizer, moving averages, metrics."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import keras
import tensorflow as tf

from kerasdist.engine.compiled.counters import Counters
from kerasdist.engine.settings import Settings
from kerasdist.engine.shards import Piece
from kerasdist.engine.state import Start, State, Tensors, Values
from kerasdist.engine.sums import Deltas, Rows, Totals
from kerasdist.engine.terms import wide
from kerasdist.models import pure
from kerasdist.models.fields import Example

# A gradient is None for a variable that the loss does not depend on.
Gradients = Sequence[tf.Tensor | None]


@dataclass(frozen=True)
class Optimizer:
    """A Keras optimizer as a function of values: clipping, update, moving averages.

    `inner` does the update. It `is_wrapped` if a `LossScaleOptimizer` scales its loss.
    """

    inner: keras.optimizers.Optimizer
    is_wrapped: bool
    roles: pure.Parts
    counters: Counters
    clip_norm: float | None
    ema: float | None

    @classmethod
    def of(
        cls, optimizer: keras.optimizers.Optimizer, roles: pure.Parts, settings: Settings
    ) -> Optimizer:
        inner, *_ = pure.loss_scale(optimizer)
        return cls(
            inner=inner,
            is_wrapped=inner is not optimizer,
            roles=roles,
            counters=Counters.of(optimizer, roles.optimizer),
            clip_norm=settings.clip_norm,
            ema=settings.ema,
        )

    def new_values(
        self,
        gradients: Gradients,
        trainable: Tensors,
        values: Tensors,
        averages: Tensors,
        step: tf.Tensor,
    ) -> dict[str, Tensors]:
        """The next values of the weights, of the optimizer's variables and of the averages."""
        gradients = clip(gradients, self.clip_norm)
        weights, new = pure.apply_gradients(
            self.inner, self.roles, gradients, trainable, values, is_inner=self.is_wrapped
        )
        if self.ema is not None:
            averages = average(averages, weights, self.ema, step)
        if self.counters.scale_and_count is not None:
            changed = self.grown_scale(dict(enumerate(new)), *self.counters.scale_and_count)
            new = [changed.get(i, value) for i, value in enumerate(new)]
        return {"trainable": weights, "optimizer": new, "ema": averages}

    def grown_scale(
        self, values: Mapping[int, tf.Tensor], scale: int, counter: int
    ) -> dict[int, tf.Tensor]:
        """The new loss scale and counter: the scale doubles after enough finite steps."""
        count = values[counter] + 1
        grow = tf.equal(count, self.counters.growth_steps)
        return {
            scale: tf.where(grow, values[scale] * 2, values[scale]),
            counter: tf.where(grow, tf.zeros_like(count), count),
        }

    def with_smaller_scale(self, start: Start) -> Values:
        """The values after a step that is not finite: only the loss scale changes, to its half."""
        values = list(start.optimizer)
        if self.counters.scale_and_count is not None:
            scale, counter = self.counters.scale_and_count
            values[scale] = values[scale] * 0.5
            values[counter] = tf.zeros_like(values[counter])
        return {**start.stored, "optimizer": values}


# Three ways to update: new values of each variable, of all of them as one vector, or in place.


class Update(Protocol):
    """Computes the new values of the weights, the optimizer and the averages, as stored.

    Values that it has written already are missing.
    """

    def new_values(self, totals: Totals, start: Start) -> Values: ...


@dataclass(frozen=True)
class PlainUpdate:
    """Updates each variable by itself."""

    optimizer: Optimizer

    def new_values(self, totals: Totals, start: Start) -> Values:
        return self.of(totals, start, start.stored["ema"])

    def of(self, totals: Totals, start: Start, averages: Tensors) -> dict[str, Tensors]:
        pairs = zip(self.optimizer.roles.trainable, start.trainable, strict=True)
        trainable = [totals.changed.get(id(v), value) for v, value in pairs]
        return self.optimizer.new_values(
            totals.gradients, trainable, start.optimizer, averages, start.step
        )


@dataclass(frozen=True)
class VectorUpdate:
    """Updates all variables as one vector, if all of them have a gradient.

    `optimizer` has vectors for its variables. `plain` does the update if a gradient is missing.
    """

    optimizer: Optimizer
    plain: PlainUpdate
    state: State

    def new_values(self, totals: Totals, start: Start) -> Values:
        stored = start.stored
        if totals.gradient_vector is None:
            new = self.plain.of(totals, start, self.state.apart("ema", stored["ema"]))
            return {role: self.state.together(role, values) for role, values in new.items()}
        return self.optimizer.new_values(
            [totals.gradient_vector],
            stored["trainable"],
            stored["optimizer"],
            stored["ema"],
            start.step,
        )


@dataclass(frozen=True)
class InPlaceUpdate:
    """Writes the new values where they are stored: with `fused`, large ones in one pass.

    Without it, a variable is written before the next one is computed.
    """

    optimizer: Optimizer
    state: State
    fused: pure.Fused | None

    def new_values(self, totals: Totals, start: Start) -> Values:
        chosen, roles = self.optimizer, self.optimizer.roles
        stored = {
            id(owner): variable
            for role in ("trainable", "optimizer")
            for owner, variable in zip(
                getattr(roles, role), self.state.variables(role, start.copy), strict=True
            )
        }
        of_weights = {id(v) for v in roles.trainable}
        given = {key: value for key, value in totals.changed.items() if key in of_weights}
        gradients = clip(totals.gradients, chosen.clip_norm)
        with pure.InPlace(stored, given, self.fused) as scope:
            pure.run_optimizer(chosen.inner, roles, gradients, is_inner=chosen.is_wrapped)
            for key in given:
                if not scope.is_written(key):  # It has no gradient.
                    scope.write(stored[key], scope.state_mapping[key])
            if chosen.ema is not None:
                self._average(scope, start, chosen.ema)
            if chosen.counters.scale_and_count is not None:
                self._grow_scale(scope, start)
        return {}

    def _average(self, scope: pure.InPlace, start: Start, decay: float) -> None:
        averages = self.state.variables("ema", start.copy)
        for owner, average_of in zip(self.optimizer.roles.trainable, averages, strict=True):
            value = scope.get_current_value(owner)
            old = scope.read(average_of)
            (new,) = average([old], [value], decay, start.step)
            scope.write(average_of, new)

    def _grow_scale(self, scope: pure.InPlace, start: Start) -> None:
        scale, counter = self.optimizer.counters.scale_and_count or (0, 0)
        variables = self.state.variables("optimizer", start.copy)
        values = {i: scope.read(variables[i]) for i in (scale, counter)}
        for i, value in self.optimizer.grown_scale(values, scale, counter).items():
            scope.write(variables[i], value)


def clip(gradients: Gradients, max_norm: float | None) -> Gradients:
    """Scales all gradients by one factor so that their global norm is at most `max_norm`."""
    if max_norm is None:
        return gradients
    squares = [tf.reduce_sum(tf.square(wide(g))) for g in gradients if g is not None]
    if not squares:
        return gradients
    dtype = tf.float64 if any(s.dtype == tf.float64 for s in squares) else tf.float32
    norm = tf.sqrt(tf.add_n([tf.cast(s, dtype) for s in squares]))
    factor = max_norm / tf.maximum(norm, max_norm)
    return [None if g is None else g * tf.cast(factor, g.dtype) for g in gradients]


def average(averages: Tensors, values: Tensors, decay: float, step: tf.Tensor) -> Tensors:
    """The moving averages after an update."""
    new = []
    for old, value in zip(averages, values, strict=True):
        of_step = tf.cast(ema_decay(decay, step), old.dtype)
        new.append(of_step * old + (1 - of_step) * value)
    return new


def ema_decay(decay: float, step: tf.Tensor) -> tf.Tensor:
    """min(decay, (1 + t) / (10 + t)) at the t-th update: early averages follow more closely."""
    t = tf.cast(step, tf.float64) + 1  # `step` counts the updates before this one.
    return tf.minimum(tf.constant(decay, tf.float64), (1 + t) / (10 + t))


# Ways to update the metrics: add what the shards add, or call them once with all outputs.


class Metrics(Protocol):
    """Computes the new values of the metrics' variables, as stored."""

    def new_values(self, start: Start, deltas: Deltas, example: Example, rows: Rows) -> Tensors: ...


@dataclass(frozen=True)
class SummedMetrics:
    """Adds what the shards add, for each variable by itself."""

    def new_values(self, start: Start, deltas: Deltas, example: Example, rows: Rows) -> Tensors:
        return [v + d for v, d in zip(start.stored["metrics"], deltas.values, strict=True)]


@dataclass(frozen=True)
class VectorMetrics:
    """Adds what the shards add to one vector of all variables."""

    state: State

    def new_values(self, start: Start, deltas: Deltas, example: Example, rows: Rows) -> Tensors:
        (stored,) = start.stored["metrics"]
        if deltas.vector is not None:
            return [stored + deltas.vector]
        values = self.state.apart("metrics", [stored])
        new = [v + d for v, d in zip(values, deltas.values, strict=True)]
        return self.state.together("metrics", new)


@dataclass(frozen=True)
class GatheredMetrics:
    """Calls the metrics once with the outputs for the whole batch. The mean loss still adds up."""

    state: State
    update: Callable[[list[tf.Tensor], Piece, Rows], list[tf.Tensor]]

    def new_values(self, start: Start, deltas: Deltas, example: Example, rows: Rows) -> Tensors:
        values = self.state.apart("metrics", start.stored["metrics"])
        added = [v + d for v, d in zip(values, deltas.values, strict=True)]
        new = self.update(added, Piece.of_batch(example), rows)
        return self.state.together("metrics", new)


@dataclass(frozen=True)
class StepUpdate:
    """The new values of everything that a training step changes."""

    roles: pure.Parts
    optimizer: Optimizer
    weights: Update
    metrics: Metrics

    def new_values(self, totals: Totals, start: Start, example: Example, rows: Rows) -> Values:
        """The values after a finite step."""
        return {
            "metrics": self.metrics.new_values(start, totals.deltas, example, rows),
            "other": [totals.changed.get(id(v)) for v in self.roles.other],
            **self.weights.new_values(totals, start),
        }
