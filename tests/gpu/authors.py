"""Whose operation is it? Notes for each operation of a graph which code made it, and its device."""

import contextlib
import functools
import os
import sys
from dataclasses import dataclass, replace

import keras
from tensorflow.python.framework import func_graph

import kerasdist

OURS, KERAS, MODEL = "kerasdist", "Keras", "model"
_ROOTS = {
    os.path.dirname(kerasdist.__file__): OURS,
    os.path.dirname(keras.__file__): KERAS,
    os.path.dirname(__file__): MODEL,
}
# Keras's functions. Who calls them is the author.
_LIBRARY = (
    "src/ops/",
    "src/backend/",
    "src/random/",
    "src/utils/",
    "src/tree/",
    "src/activations/",
)
# TensorFlow's functions that compute the gradient of an operation.
_GRADIENTS = ("_gradient_function", "_GradientsHelper")
_PARTS = (keras.layers.Layer, keras.losses.Loss, keras.metrics.Metric, keras.optimizers.Optimizer)


@dataclass(frozen=True)
class Author:
    """`owner` is one of `OURS`, `KERAS`, `MODEL`. `part` is a class such as `Dense`, if known.

    `place` is file and function. `if_not_finite`: it runs only if a step is not finite.
    """

    owner: str
    part: str
    place: str
    is_gradient: bool = False
    if_not_finite: bool = False

    def __str__(self):
        whose = self.part if self.owner == KERAS and self.part else self.place
        return f"gradient of {whose}" if self.is_gradient else whose


@dataclass(frozen=True)
class Made:
    """An operation: its author, the device that was asked for, dtypes and shapes of its outputs."""

    op: str
    author: Author
    device: str
    outputs: tuple[tuple[str, tuple[int | None, ...] | None], ...]


UNKNOWN = Author("unknown", "", "unknown")


class Authors:
    """Collects `Made` for the operations of all functions that are traced meanwhile."""

    def __init__(self):
        self._made = {}
        self._scopes = {}

    def of(self, function, operation):
        """`Made` for an operation, by the names of its function and itself; None if unknown."""
        return self._made.get((function, operation))

    @contextlib.contextmanager
    def collecting(self):
        create = func_graph.FuncGraph._create_op_internal

        def create_and_note(graph, *args, **kwargs):
            operation = create(graph, *args, **kwargs)
            self._note(graph.name, operation, sys._getframe(1))
            return operation

        func_graph.FuncGraph._create_op_internal = create_and_note
        try:
            yield self
        finally:
            func_graph.FuncGraph._create_op_internal = create

    def _note(self, function, operation, frame):
        outputs = tuple(
            (t.dtype.name, None if t.shape.rank is None else tuple(t.shape.as_list()))
            for t in operation.outputs
        )
        author = self._author(frame)
        self._scopes[function, operation.name.rpartition("/")[0]] = author
        self._made[function, operation.name] = Made(
            operation.type, author, operation.device, outputs
        )

    def _author(self, frame):
        owner = part = place = ""
        if_not_finite = False
        while frame is not None:
            if not owner and frame.f_code.co_name in _GRADIENTS:
                forward = self._author_of_forward(frame)
                if forward is not None:
                    return replace(forward, is_gradient=True)
            found, found_place, in_finite = _known(frame.f_code)
            if_not_finite |= in_finite
            if not owner and found:
                owner, place = found, found_place
            if not part and found and owner == KERAS:
                part = _part(frame)
            frame = frame.f_back
        return Author(owner or "unknown", part, place or "unknown", False, if_not_finite)

    def _author_of_forward(self, frame):
        """The author of the operation whose gradient this frame computes, if it does."""
        values = frame.f_locals
        if "forward_pass_name_scope" not in values:
            return self._author_of(values.get("op"))
        outputs, inputs = (
            [t.op for t in values[key] or () if hasattr(t, "op")] for key in ("outputs", "inputs")
        )
        found = [self._author_of(operation) for operation in outputs]
        # A value that the gradient does not need is missing.
        scope = (values["forward_pass_name_scope"] or "").rstrip("/")
        if inputs and scope:
            found.append(self._scopes.get((inputs[0].graph.name, scope)))
        found += [self._author_of(operation) for operation in inputs]
        return next((author for author in found if author is not None), None)

    def _author_of(self, operation):
        made = None if operation is None else self.of(operation.graph.name, operation.name)
        return None if made is None else made.author


@functools.cache
def _known(code):
    """Owner and place of a function's code ("" if it says nothing), and whether it is for flags."""
    root = next((r for r in _ROOTS if code.co_filename.startswith(r + os.sep)), None)
    if root is None:
        return "", "", False
    path = code.co_filename[len(root) + 1 :]
    in_finite = path.endswith("finite.py") and code.co_name in ("flags", "keep")
    is_library = _ROOTS[root] == KERAS and path.startswith(_LIBRARY)
    if is_library or path.startswith(("authors", "audit")):
        return "", "", in_finite
    return _ROOTS[root], f"{path}:{code.co_qualname}", in_finite


def _part(frame):
    made = frame.f_locals.get("self")
    is_model = isinstance(made, keras.Model)
    return type(made).__name__ if isinstance(made, _PARTS) and not is_model else ""
