"""A model as a function of named tensors: what an exported file computes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.models import pure
from kerasdist.models.contract import Model
from kerasdist.models.fields import named_leaves, read

# A loaded file: arrays in the order of the inputs, to flat outputs in the model's order.
Runtime = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


@dataclass(frozen=True)
class Served:
    """A built model and its inputs: `tf.TensorSpec`s with names, of any number of examples."""

    model: keras.Model
    inputs: tuple[tf.TensorSpec, ...]
    args: Any
    output_names: tuple[str, ...]

    def pack(self, tensors: Sequence[Any]) -> tuple:
        """Tensors in the order of the inputs as the arguments of the model."""
        return tuple(keras.tree.pack_sequence_as(self.args, list(tensors)))

    def call(self, *tensors: Any) -> list[Any]:
        """Flat outputs, without dropout and the like."""
        outputs = pure.call(self.model, self.pack(tensors), training=False)
        return [t for t in keras.tree.flatten(outputs) if t is not None]

    def named(self, *tensors: Any) -> dict[str, Any]:
        return dict(zip(self.output_names, self.call(*tensors), strict=True))

    def with_batch_of(self, size: int | None) -> tuple[tf.TensorSpec, ...]:
        """The inputs with a number of examples."""
        return tuple(
            tf.TensorSpec([size, *spec.shape[1:]], spec.dtype, spec.name) for spec in self.inputs
        )


def serve(model: keras.Model, spec: Any, fed: Any = None) -> Served:
    """A built model with inputs named by its `features`, or by a functional model's own names.

    Args:
        model: A built model.
        spec: What the run was trained on, from `architecture.read_spec`.
        fed: What it will be given instead, where that is known: the spec of the validation data.
    """
    args = read(model, spec, need_targets=False).args
    leaves = keras.tree.flatten(args)
    if fed is not None:
        known = keras.tree.flatten(read(model, fed, need_targets=False).args)
        leaves = [_joined(*pair) for pair in zip(leaves, known, strict=True)]
    inputs = tuple(
        tf.TensorSpec([None, *leaf.shape[1:]], leaf.dtype, name)
        for name, leaf in zip(_names(model, args), leaves, strict=True)
    )
    return Served(model, inputs, args, _output_names(model, inputs, args))


def _joined(trained: tf.TensorSpec, fed: tf.TensorSpec) -> tf.TensorSpec:
    """The spec of what is fed, with a free size wherever training had one."""
    if trained.shape.rank != fed.shape.rank:
        return fed
    pairs = zip(trained.shape.as_list(), fed.shape.as_list(), strict=True)
    return tf.TensorSpec([None if a is None else b for a, b in pairs], fed.dtype)


def _names(model: keras.Model, args: tuple) -> list[str]:
    leaves = [name for arg in args for name, _ in named_leaves(arg)]
    if isinstance(model, Model) and model.features is not None:
        features = (model.features,) if isinstance(model.features, str) else model.features
        leaves = [
            "/".join(part for part in (feature, name) if part)
            for feature, arg in zip(features, args, strict=True)
            for name, _ in named_leaves(arg)
        ]
    elif not all(leaves):
        own = [tensor.name for tensor in getattr(model, "inputs", None) or ()]
        # A Sequential's have no name that anybody gave.
        is_named = len(own) == len(leaves) and not isinstance(model, keras.Sequential)
        leaves = own if is_named else [f"input_{i}" for i in range(len(leaves))]
    return [re.sub(r"\W", "_", name) for name in leaves]


def _output_names(
    model: keras.Model, inputs: tuple[tf.TensorSpec, ...], args: tuple
) -> tuple[str, ...]:
    """The keys of a dict of outputs; numbers otherwise."""

    def outputs(*tensors):
        packed = keras.tree.pack_sequence_as(args, list(tensors))
        return pure.call(model, packed, training=False)

    traced = tf.function(outputs, autograph=False).get_concrete_function(*inputs)
    names = [name for name, _ in named_leaves(traced.structured_outputs)]
    if isinstance(traced.structured_outputs, Mapping):
        return tuple(re.sub(r"\W", "_", name) for name in names)
    return tuple(f"output_{i}" for i in range(len(names)))


def in_float32(served: Served) -> list[str]:
    """Lets a model of mixed precision compute in float32, as its variables are; says so.

    Runtimes have no mixed precision, or round at other places: bfloat16 has three digits.
    """
    mixed = [
        layer
        for layer in pure.all_layers(served.model)
        if layer.dtype_policy.compute_dtype != layer.dtype_policy.variable_dtype
    ]
    for layer in mixed:
        layer.dtype_policy = keras.DTypePolicy(layer.dtype_policy.variable_dtype)
    return ["the file computes in float32, not in mixed precision as the run did"] if mixed else []


def first_line(error: BaseException) -> str:
    """The first sentence of an error, with its kind."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    sentence = lines[0].split(". ")[0].rstrip(".") if lines else "no reason was given"
    return f"{type(error).__name__}: {sentence[:300]}."


def failed(message: str, cause: BaseException | None = None) -> Exception:
    """An error of an export that had begun: exit code 1, not that of a usage error."""
    error = KerasdistError(message)
    error.during_run = True  # type: ignore[attr-defined]
    error.__cause__ = cause
    return error
