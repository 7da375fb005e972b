"""Traces one forward pass of a model, without running it, and reads what its graph does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.models import pure
from kerasdist.models.class_weights import weigh_classes
from kerasdist.models.fields import Batch, read
from kerasdist.models.tensors.composites import count_rows

_ASSIGNS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceScatter")
# Operations that keep a random state in TensorFlow. Keras's random functions use stateless ones.
_RANDOM = (
    "Multinomial",
    "NonDeterministicInts",
    "ParameterizedTruncatedNormal",
    "RandomGamma",
    "RandomPoisson",
    "RandomShuffle",
    "RandomStandardNormal",
    "RandomUniform",
    "RngReadAndSkip",
    "StatefulRandomBinomial",
    "StatefulStandardNormal",
    "StatefulTruncatedNormal",
    "StatefulUniform",
    "TruncatedNormal",
)


@dataclass(frozen=True)
class Trace:
    """A traced forward pass with loss and metrics. `outputs` holds a `tf.TensorSpec` per output."""

    forward: pure.Forward
    shard: pure.Shard
    outputs: Any
    random_operations: tuple[str, ...]

    def own_state(self, model: keras.Model) -> tuple[keras.Variable, ...]:
        return _own_state(model, self.forward)

    def drawn(self, model: keras.Model) -> tuple[keras.Variable, ...]:
        """The states of the seed generators that the pass draws from."""
        return _drawn(model, self.forward, self.random_operations)


def trace(
    model: keras.Model,
    spec: Batch,
    *,
    training: bool,
    class_weight: dict[int, float] | None = None,
) -> Trace:
    """Traces model, loss and metrics over a batch of the given spec."""
    found: dict[str, Any] = {}

    def forward(batch: Batch) -> None:
        # Class weights change what some losses divide by.
        example = weigh_classes(read(model, batch), class_weight)
        count = count_rows(tf.nest.flatten(example.args)[0], tf.int32)
        shard = pure.Shard(count, count, draw_seed=tf.constant([0, 0], tf.int64))
        roles = pure.parts(model)
        passed = pure.forward(
            model, roles, _zeros(roles), example, shard=shard, training=training, with_metrics=True
        )
        outputs = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), passed.outputs)
        found.update(forward=passed, shard=shard, outputs=outputs)

    graph = _adopting_graph(model, forward, spec, lambda: found["forward"])
    return Trace(**found, random_operations=tuple(operations_with_random_state(graph)))


def trace_prediction(
    model: keras.Model, spec: Batch
) -> tuple[tuple[keras.Variable, ...], tuple[keras.Variable, ...]]:
    """Traces a prediction.

    Returns the state that it changes, without that of Keras's own layers, and the states of the
    seed generators that it draws from.
    """
    found: list[pure.Forward] = []

    def forward(batch: Batch) -> None:
        example = read(model, batch, need_targets=False)
        roles = pure.parts(model)
        found.append(pure.predict(model, roles, _zeros(roles), example))

    graph = _adopting_graph(model, forward, spec, lambda: found[-1])
    return _own_state(model, found[-1]), _drawn(
        model, found[-1], operations_with_random_state(graph)
    )


def _adopting_graph(
    model: keras.Model,
    function: Callable[[Batch], None],
    spec: Batch,
    passed: Callable[[], pure.Forward],
) -> tf.Graph:
    """Traces `function`. Traces it again if it assigned variables that no layer owns.

    Keras's own `fit` changes such variables, too. So the model adopts them.
    """
    graph = _graph(function, spec)
    if passed().outside:
        pure.adopt(model, passed().outside)
        graph = _graph(function, spec)
    refuse_assigned(model, graph)
    _refuse_cast_strings(graph)
    return graph


def _graph(function: Callable[[Batch], None], spec: Batch) -> tf.Graph:
    with pure.patched():
        return tf.function(function, autograph=False).get_concrete_function(spec).graph


def _zeros(roles: pure.Parts) -> tuple[pure.Tensors, pure.Tensors, pure.Tensors]:
    """Placeholder values: a trace does not compute anything with them."""

    def zeros(variables: tuple[keras.Variable, ...]) -> list[tf.Tensor]:
        return [tf.zeros(v.shape, v.dtype) for v in variables]

    return zeros(roles.trainable), zeros(roles.other), zeros(roles.seeds)


def _own_state(model: keras.Model, forward: pure.Forward) -> tuple[keras.Variable, ...]:
    """The variables that a pass changes, without those of Keras's own layers."""
    roles = pure.parts(model)
    of_keras = pure.state_of_keras_layers(model)
    return tuple(
        v
        for v in (*roles.trainable, *roles.other)
        if id(v) in forward.changed and id(v) not in of_keras
    )


def _drawn(
    model: keras.Model, forward: pure.Forward, random_operations: Sequence[str]
) -> tuple[keras.Variable, ...]:
    """Keras's global generator stands for `tf.random`, which has no generator of Keras."""
    if forward.drawn or not random_operations:
        return forward.drawn
    return (pure.share_global_seed_generator().state,)


def refuse_assigned(model: keras.Model, graph: tf.Graph) -> None:
    for name in _assigned_variables(graph):
        raise KerasdistError(
            f"The model {type(model).__name__!r} assigns the `tf.Variable` {name!r} while it runs. "
            "Expected a `keras.Variable` or a layer's weight: these have one value on all devices, "
            "and are saved and restored. Make it with `keras.Variable(...)`, or with "
            "`self.add_weight(...)` in a layer."
        )


def _refuse_cast_strings(graph: tf.Graph) -> None:
    """TensorFlow traces a cast of strings, but cannot run it (2.21)."""
    for operation in graph.get_operations():
        if operation.type == "Cast" and operation.inputs[0].dtype == tf.string:
            raise TypeError(f"cannot cast strings to {operation.outputs[0].dtype.name}")


def _assigned_variables(graph: tf.Graph) -> list[str]:
    """Names of the `tf.Variable`s that a graph assigns, or of the operation if it is unknown."""
    inside = {id(internal): external for external, internal in graph.captures}
    names = {id(variable.handle): variable.name for variable in graph.variables}
    found = []
    for operation in graph.get_operations():
        if operation.type.startswith(_ASSIGNS):
            handle = inside.get(id(operation.inputs[0]))
            found.append(names.get(id(handle), operation.name))
    found += [node.name for node in _nodes_of_functions(graph) if node.op.startswith(_ASSIGNS)]
    return list(dict.fromkeys(found))


def operations_with_random_state(graph: tf.Graph) -> list[str]:
    """Names of the operations that draw random numbers from a state in TensorFlow."""
    own = [op.name for op in graph.get_operations() if op.type.startswith(_RANDOM)]
    return own + [node.name for node in _nodes_of_functions(graph) if node.op.startswith(_RANDOM)]


def _nodes_of_functions(graph: tf.Graph) -> Iterator[Any]:
    """The nodes of all functions that a graph calls: loops, branches, nested `tf.function`s."""
    for function in graph.as_graph_def().library.function:
        yield from function.node_def
