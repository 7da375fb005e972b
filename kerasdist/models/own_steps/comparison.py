"""Compares a step on some examples with the same step on two parts of them.

A step that compares the examples of a batch, or needs all of them for another reason, gives other
gradients on parts. Such a step must run on whole batches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.errors import keras_reason
from kerasdist.models import pure
from kerasdist.models.fields import Batch
from kerasdist.models.own_steps.plans import MEAN, SAME, StepPlan
from kerasdist.models.probing.gradient_sums import OF_LARGEST
from kerasdist.models.probing.probe import ROWS
from kerasdist.models.probing.rounding import as_float64, of_gradients, rounding_of
from kerasdist.models.tensors.composites import (
    as_tensor,
    count_rows,
    gather_rows,
    is_composite,
    rows_of,
)

# Sums of many numbers may differ by this fraction.
_RELATIVE = 1e-3


def with_verdict(model: keras.Model, plan: StepPlan, batch: Batch) -> StepPlan:
    """The plan, with the reason why the step must be whole, if the first batch shows one."""
    if plan.must_be_whole:
        return plan
    sizes = {int(count_rows(leaf)) for leaf in tf.nest.flatten(batch) if leaf is not None}
    if len(sizes) > 1:
        reason = f"the fields of a batch have different numbers of examples ({sorted(sizes)})"
        return replace(plan, must_be_whole=reason, is_compared=True)
    if sizes == {1}:
        return plan  # Another batch may show one.
    try:
        reason = _Comparison(model, plan, batch).difference()
    except Exception as error:  # noqa: BLE001 - whatever the step needs, it has it on whole batches
        told = keras_reason(error) or type(error).__name__
        reason = f"it cannot run on a part of a batch ({told})"
    varied = None if reason else _with_varied_weights(batch)
    if varied is not None:
        with contextlib.suppress(Exception):  # The step may not take such weights.
            reason = _Comparison(model, plan, varied).difference()
    return replace(plan, must_be_whole=reason, is_compared=True)


def _with_varied_weights(batch: Batch) -> Batch | None:
    """The batch with other sample weights, if its own are all the same; else None.

    Equal weights do not show a step that multiplies two means over its batch.
    """
    if not isinstance(batch, (tuple, list)) or len(batch) != 3 or batch[2] is None:
        return None
    changed = []

    def vary(leaf: Any) -> Any:
        values = None if leaf is None or is_composite(leaf) else np.asarray(leaf)
        if values is None or values.dtype.kind != "f" or values.ndim == 0 or np.ptp(values) > 0:
            return leaf
        changed.append(leaf)
        factors = np.random.default_rng(0).uniform(0.5, 1.0, size=values.shape)
        return tf.constant((values * factors).astype(values.dtype))

    x, y, weights = batch
    varied = x, y, tf.nest.map_structure(vary, weights)
    return varied if changed else None


@dataclass(frozen=True)
class _Result:
    """One run of the step on some rows: floats by name, and what kind of sum each of them is."""

    gradients: list[np.ndarray | None]
    metrics: dict[str, np.ndarray]
    means: dict[str, np.ndarray]
    rows: dict[str, np.ndarray]
    denominators: list[tf.Tensor]
    draws: pure.Draws
    has_shuffled: bool


class _Comparison:
    """Runs a step eagerly, on rows of the first batch."""

    def __init__(self, model: keras.Model, plan: StepPlan, batch: Batch):
        self._model, self._plan = model, plan
        self._roles = pure.own_parts(model)
        leaves = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
        size = int(count_rows(leaves[0]))
        self._count = min(size, ROWS)
        self._of_rows: Collection[int] | None = None
        rows = np.linspace(0, size - 1, self._count).astype("int64")
        self._batch = tf.nest.map_structure(
            lambda t: None if t is None else gather_rows(as_tensor(t), rows), batch
        )

    def difference(self) -> str:
        """What differs between the whole and its parts; "" if nothing does."""
        count = self._count
        middle = self._sizes[0]
        for _ in range(2):
            whole = self._run(0, count)
            given = (whole.gradients, whole.denominators)
            parts = [self._run(*rows, *given) for rows in ((0, middle), (middle, count))]
            # Draws whose size does not follow the number of rows are not for rows.
            draws = [each.draws.of_rows for each in (whole, *parts)]
            self._of_rows = set.intersection(*draws)
            if all(each == self._of_rows for each in draws):
                break
        if len({each.draws.num_draws for each in (whole, *parts)}) > 1:
            return "it draws another number of random values for a part of a batch"
        again = whole
        if whole.has_shuffled or not whole.draws.are_alike:
            again = self._run(0, count, whole.gradients, other_chance=True)
        return (
            self._gradients_differ(whole, parts, again)
            or self._values_differ(whole, parts, again, (middle / count, 1 - middle / count))
            or self._rows_differ(whole, parts, again)
        )

    def _gradients_differ(self, whole: _Result, parts: list[_Result], again: _Result) -> str:
        largest = max(
            (np.abs(g).max(initial=0) for g in whole.gradients if g is not None), default=0
        )
        of_own = of_gradients(self._model)
        of_largest = OF_LARGEST * of_own
        if not np.isfinite(of_own):  # In half precision they are compared roughly.
            of_own = of_largest = self._rounding
        for i, (expected, other) in enumerate(zip(whole.gradients, again.gradients, strict=True)):
            of_parts = [part.gradients[i] for part in parts]
            if expected is None or other is None or any(g is None for g in of_parts):
                continue
            if not np.allclose(expected, other, rtol=1e-5):
                continue  # It depends on chance.
            found = sum(g for g in of_parts if g is not None)
            own = np.abs(expected).max(initial=0)
            limit = of_own * own + of_largest * largest
            if not np.all(np.abs(found - expected) <= limit):
                return "its gradients on parts of a batch do not add up to those on the whole batch"
        return ""

    def _values_differ(
        self, whole: _Result, parts: list[_Result], again: _Result, shares: tuple[float, float]
    ) -> str:
        pairs = [(whole.metrics, again.metrics, [p.metrics for p in parts], (1.0, 1.0), "metric")]
        pairs += [(whole.means, again.means, [p.means for p in parts], shares, "value")]
        for expected, other, of_parts, factors, what in pairs:
            for name, value in expected.items():
                if not np.allclose(value, other[name], rtol=1e-5, equal_nan=True):
                    continue
                given = [part[name] for part in of_parts]
                if any(g.shape != value.shape for g in given):
                    return f"the {what} {name!r} has another shape for a part of a batch"
                found = sum(f * g for f, g in zip(factors, given, strict=True))
                size = np.abs([value, *given]).max(initial=0)
                limit = (1e-4 + self._rounding) * size + 1e-6
                if np.isfinite(value).all() and not np.all(np.abs(found - value) <= limit):
                    return f"the {what} {name!r} of a batch does not add up over parts of it"
        return ""

    def _rows_differ(self, whole: _Result, parts: list[_Result], again: _Result) -> str:
        for name, rows in whole.rows.items():
            of_parts = [part.rows[name] for part in parts]
            sizes = [each.shape[:1] for each in (rows, *of_parts)]
            if sizes != [(self._count,), *((size,) for size in self._sizes)]:
                return f"the {name} does not have one row per example"
            if not np.allclose(rows, again.rows[name], rtol=1e-5, equal_nan=True):
                continue
            found, is_finite = np.concatenate(of_parts), np.isfinite(rows)
            size = np.abs(rows[is_finite]).max(initial=0)
            limit = (_RELATIVE + self._rounding) * size
            if not np.all(np.abs(found - rows)[is_finite] <= limit):
                return f"the {name} has other rows for a part of a batch"
        return ""

    @property
    def _sizes(self) -> tuple[int, int]:
        """The numbers of rows of the two parts."""
        first = min(max(1, round(self._count * 0.62)), self._count - 1)
        return first, self._count - first

    @property
    def _rounding(self) -> float:
        return rounding_of(self._model)

    def _run(
        self,
        begin: int,
        end: int,
        known: list[np.ndarray | None] | None = None,
        denominators: list[tf.Tensor] | None = None,
        *,
        other_chance: bool = False,
    ) -> _Result:
        roles, size = self._roles, end - begin
        data = tf.nest.map_structure(
            lambda t: None if t is None else rows_of(t, begin, end), self._batch
        )
        shard = pure.Shard(tf.constant(size), tf.constant(self._count), denominators)
        met: list[np.ndarray | None] = []

        def meet(gradients: pure.Gradients, names: Sequence[str]) -> pure.Gradients:
            own = [None if g is None else tf.convert_to_tensor(g) for g in gradients]
            first = len(met)
            weight = size / self._count
            met.extend(None if g is None else weight * as_float64(g.numpy()) for g in own)
            if known is None:
                return own
            whole = known[first : first + len(own)]
            return [
                g if g is None or w is None else tf.cast(tf.constant(w), g.dtype)
                for g, w in zip(own, whole, strict=True)
            ]

        one_row = pure.rows_like(size)
        seed = tf.constant([7 if other_chance else 5, 0], tf.int64)
        call = pure.Call(self._plan.method, shard, seed, meet, one_row=one_row)
        zeros = [(v, tf.zeros(v.shape, v.dtype)) for v in roles.metrics]
        held = [
            (v, tf.convert_to_tensor(native))
            for role in ("trainable", "other", "optimizer", "seeds")
            for v, native in zip(getattr(roles, role), roles.natives(role), strict=True)
        ]
        repeated = pure.repeated_rows(size, self._of_rows, other_chance=other_chance)
        with pure.patched(), repeated as draws:
            metrics = pure.metrics_of(self._model)
            stepped = pure.run_step(self._model, [*held, *zeros], data, call, metrics)
        return _Result(
            met, *self._values(stepped), shard.local_denominators, draws, stepped.has_shuffled
        )

    def _values(
        self, stepped: pure.Stepped
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], dict[str, np.ndarray]]:
        """`(changes of metrics, which add up; values that are means; rows)`, by name."""
        metrics = {
            f"{i} {v.path}": as_float64(stepped.changed[id(v)].numpy())
            for i, v in enumerate(self._roles.metrics)
            if id(v) in stepped.changed and tf.as_dtype(v.dtype) != tf.bool
        }
        variables = {id(v): v for v in (*self._roles.trainable, *self._roles.other)}
        of_keras = pure.state_of_keras_layers(self._model)  # Such as BatchNorm's averages.
        means = {
            variables[key].path: as_float64(value.numpy())
            for key, value in stepped.changed.items()
            if key in variables and key not in self._plan.same and key not in of_keras
        }
        leaves = tf.nest.flatten(stepped.returned)
        returned = {
            f"returned value {i}": as_float64(np.asarray(leaf))
            for i, (leaf, kind) in enumerate(zip(leaves, self._plan.kinds, strict=True))
            if kind in (MEAN, SAME)
        }
        if self._plan.method == "predict_step":
            return metrics, means, returned
        return metrics, means | returned, {}
