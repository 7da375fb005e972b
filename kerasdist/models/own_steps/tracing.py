"""Traces a model's own step without running it, and finds what depends on the examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from kerasdist.errors import KerasdistError, keras_reason
from kerasdist.models import pure
from kerasdist.models.fields import Batch
from kerasdist.models.own_steps.plans import MEAN, RESULT, SAME, StepPlan
from kerasdist.models.tensors.composites import count_rows
from kerasdist.models.traces import operations_with_random_state, refuse_assigned


def plan_step(model: keras.Model, method: str, spec: Batch) -> StepPlan:
    """Builds what is not built yet, and traces the step on batches like `spec`."""
    try:
        if not pure.is_built(model):
            pure.build_step(model, method, spec)
        try:
            return _Trace(model, method, spec).plan()
        except pure.NotBuiltError:
            pure.build_step(model, method, spec)
            return _Trace(model, method, spec).plan()
    except KerasdistError:
        raise
    except Exception as error:
        raise _untraceable(model, method, error) from error


class _Trace:
    """A traced step. Traces again if the step changed variables that no layer owns."""

    def __init__(self, model: keras.Model, method: str, spec: Batch):
        self._model, self._method = model, method
        pure.own_parts(model)  # Creates its counter: a trace that creates one is made twice.
        for _ in range(3):
            self._graph = self._traced(spec)
            if not self._stepped.outside:
                break
            pure.adopt(model, self._stepped.outside)
        refuse_assigned(model, self._graph)

    def _traced(self, spec: Batch) -> tf.Graph:
        with pure.patched():
            made = tf.function(self._run, autograph=False)
            return made.get_concrete_function(spec, tf.TensorSpec((), tf.int64)).graph

    def _run(self, batch: Batch, index: tf.Tensor) -> None:
        model, roles = self._model, pure.own_parts(self._model)
        leaves = [leaf for leaf in tf.nest.flatten(batch) if leaf is not None]
        count = count_rows(leaves[0])
        self._shard = pure.Shard(count, count)
        held = (*roles.trainable, *roles.other, *roles.optimizer, *roles.metrics)
        values = [(v, tf.zeros(v.shape, v.dtype)) for v in held]
        # What is drawn depends on the shard.
        values += [(v, tf.cast(tf.stack([index, index]), v.dtype)) for v in roles.seeds]
        self._met: list[tf.Tensor] = []
        self._presence: list[tuple[bool, ...]] = []
        self._names: list[str] = []
        call = pure.Call(
            self._method, self._shard, tf.stack([index, index]), self._meet, builds=True
        )
        self._stepped = pure.run_step(model, values, batch, call, pure.metrics_of(model))
        self._sources = [*tf.nest.flatten(leaves, expand_composites=True), index]
        self._roles = pure.own_parts(model)  # Also of the optimizers that were built just now.

    def _meet(self, gradients: pure.Gradients, names: Sequence[str]) -> pure.Gradients:
        self._presence.append(tuple(g is not None for g in gradients))
        self._names += [n for n, g in zip(names, gradients, strict=True) if g is not None]
        met = [None if g is None else tf.identity(tf.convert_to_tensor(g)) for g in gradients]
        self._met += [g for g in met if g is not None]
        return met

    def plan(self) -> StepPlan:
        stepped = self._stepped
        metrics = {id(v) for v in self._roles.metrics}
        changed = {key: v for key, v in stepped.changed.items() if key not in metrics}
        dependent = _dependent(changed.values(), self._sources, self._met)
        same = frozenset(key for key, v in changed.items() if _name(v) not in dependent)
        leaves = [tf.convert_to_tensor(leaf) for leaf in tf.nest.flatten(stepped.returned)]
        of_data = _dependent(leaves, self._sources, self._met)
        kinds = [
            RESULT if i in stepped.results else MEAN if _name(leaf) in of_data else SAME
            for i, leaf in enumerate(leaves)
        ]
        returned = tf.nest.pack_sequence_as(
            stepped.returned, [tf.TensorSpec(leaf.shape, leaf.dtype) for leaf in leaves]
        )
        return StepPlan(
            method=self._method,
            meetings=tuple(self._presence),
            num_denominators=len(self._shard.local_denominators),
            changed=tuple(changed),
            same=same,
            returned=returned,
            kinds=tuple(kinds),
            results=dict(stepped.results),
            needs_logs=self._needs_logs(stepped.returned),
            gradient_names=tuple(f"gradient of {name}" for name in self._names),
            random_operations=tuple(operations_with_random_state(self._graph)),
            synchronizes=self._shard.asks_replicas,
            must_be_whole=self._uncuttable(changed, same),
        )

    def _needs_logs(self, returned: Any) -> bool:
        """As in Keras, values with the names of the model's metrics are taken from these."""
        if not isinstance(returned, Mapping):
            return returned is not None
        try:
            return set(returned) != set(self._model.get_metrics_result())
        except ValueError:  # Keras has not built the metrics: nothing updates them.
            return True

    def _uncuttable(self, changed: dict[int, tf.Tensor], same: frozenset[int]) -> str:
        """Names a change that does not add up, or draws that come only once; "" if none does."""
        # On several shards, parts of the step run more than once and must draw the same numbers.
        for operation in operations_with_random_state(self._graph):
            return f"it draws random numbers from a state in TensorFlow (operation {operation!r})"
        optimizer = {id(v): v for v in self._roles.optimizer}
        for key in changed:
            if key in optimizer and key not in same:
                return f"it updates the optimizer's {optimizer[key].path!r} from single examples"
        return ""


def _dependent(
    tensors: Iterable[tf.Tensor], sources: Iterable[tf.Tensor], stops: Iterable[tf.Tensor]
) -> set[str]:
    """The names of those tensors that depend on the sources, other than through the stops."""
    known = {t.name: True for t in sources} | {t.name: False for t in stops}
    for tensor in tensors:
        waiting = [tensor] if tf.is_symbolic_tensor(tensor) else []
        while waiting:
            last = waiting[-1]
            if last.name in known:
                waiting.pop()
                continue
            inputs = list(last.op.inputs)
            unknown = [t for t in inputs if t.name not in known]
            if unknown:
                waiting += unknown
            else:
                known[last.name] = any(known[t.name] for t in inputs)
                waiting.pop()
    return {name for name, depends in known.items() if depends}


def _name(tensor: tf.Tensor) -> str:
    """Its name in the graph. A step may also return plain numbers, which have none."""
    return tensor.name if tf.is_symbolic_tensor(tensor) else ""


def _untraceable(model: keras.Model, method: str, error: Exception) -> KerasdistError:
    reason = (keras_reason(error) or type(error).__name__).rstrip(".")
    return KerasdistError(
        f"`{method}` of {type(model).__name__!r} cannot be compiled: {reason}. Expected TensorFlow "
        "or `keras.ops` functions of the batch, as in Keras's compiled `fit`. The traceback above "
        "this one shows where it failed."
    )
