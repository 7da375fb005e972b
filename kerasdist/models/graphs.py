"""What a traced graph does besides computing: variables it assigns, random numbers it draws."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

_ASSIGNS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp", "ResourceScatter")
# Kernels that keep a state of their own; Keras's random functions use those without.
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


def assigned_variables(graph: Any) -> list[str]:
    """Names of the `tf.Variable`s that a function's graph assigns; of an operation, if unknown."""
    inside = {id(internal): external for external, internal in graph.captures}
    names = {id(variable.handle): variable.name for variable in graph.variables}
    found = []
    for operation in graph.get_operations():
        if operation.type.startswith(_ASSIGNS):
            handle = inside.get(id(operation.inputs[0]))
            found.append(names.get(id(handle), operation.name))
    found += [node.name for node in _nodes_of_functions(graph) if node.op.startswith(_ASSIGNS)]
    return list(dict.fromkeys(found))


def random_operations(graph: Any) -> list[str]:
    """Names of the operations that draw random numbers from a state of TensorFlow's own."""
    own = [op.name for op in graph.get_operations() if op.type.startswith(_RANDOM)]
    return own + [node.name for node in _nodes_of_functions(graph) if node.op.startswith(_RANDOM)]


def _nodes_of_functions(graph: Any) -> Iterator[Any]:
    """The nodes of all functions that a graph calls: loops, branches, nested `tf.function`s."""
    for function in graph.as_graph_def().library.function:
        yield from function.node_def
