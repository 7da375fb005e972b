"""A trained model as a function of named tensors: what an exported file computes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.errors import first_line
from kerasdist.models import pure
from kerasdist.models.contract import Model
from kerasdist.models.fields import named_leaves, read

# A loaded file. It takes arrays in the order of the inputs, and returns the flat outputs.
Runtime = Callable[[Sequence[np.ndarray]], list[np.ndarray]]


@dataclass(frozen=True)
class Served:
    """A built model and its named inputs, which take any number of examples.

    Attributes:
        model: The model.
        inputs: `tf.TensorSpec`s with names and an open batch size.
        args: The structure of the model's positional arguments, with a leaf per input.
        output_names: The names of the flat outputs.
        files: Computes what is told of files from their bytes, a string tensor `[n]`; None if the
            recipe cannot decode them in a graph.
    """

    model: keras.Model
    inputs: tuple[tf.TensorSpec, ...]
    args: Any
    output_names: tuple[str, ...]
    files: Callable[[tf.Tensor], dict[str, tf.Tensor]] | None = None

    def pack(self, tensors: Sequence[Any]) -> tuple[Any, ...]:
        """Arranges tensors in the order of the inputs as arguments of the model."""
        return tuple(keras.tree.pack_sequence_as(self.args, list(tensors)))

    def call(self, *tensors: Any) -> list[tf.Tensor]:
        """The flat outputs for prediction (no dropout)."""
        outputs = pure.call(self.model, self.pack(tensors), training=False)
        return [t for t in keras.tree.flatten(outputs) if t is not None]

    def named(self, *tensors: Any) -> dict[str, tf.Tensor]:
        """The outputs for prediction, by name."""
        return dict(zip(self.output_names, self.call(*tensors), strict=True))

    def with_batch_of(self, size: int | None) -> tuple[tf.TensorSpec, ...]:
        """The inputs with a fixed number of examples, or None for any number."""
        return tuple(
            tf.TensorSpec([size, *spec.shape[1:]], spec.dtype, spec.name) for spec in self.inputs
        )


def serve(model: keras.Model, spec: Any, fed: Any = None) -> Served:
    """Describes a model's inputs: named by its `features`, or as in a functional model.

    Args:
        model: A built model.
        spec: The batches that it was trained on, from `architecture.read_spec`.
        fed: The batches that it will be used on, if known: the spec of the validation data.
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
    """The spec of what is fed, with an open size wherever training had one."""
    if trained.shape.rank != fed.shape.rank:
        return fed
    pairs = zip(trained.shape.as_list(), fed.shape.as_list(), strict=True)
    return tf.TensorSpec([None if a is None else b for a, b in pairs], fed.dtype)


def _names(model: keras.Model, args: tuple[Any, ...]) -> list[str]:
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
        # In a Sequential model nobody has chosen these names.
        is_named = len(own) == len(leaves) and not isinstance(model, keras.Sequential)
        leaves = own if is_named else [f"input_{i}" for i in range(len(leaves))]
    return [re.sub(r"\W", "_", name) for name in leaves]


def _output_names(
    model: keras.Model, inputs: tuple[tf.TensorSpec, ...], args: tuple[Any, ...]
) -> tuple[str, ...]:
    """The keys of a dict of outputs; `output_0` and so on for other outputs."""

    def outputs(*tensors: tf.Tensor) -> Any:
        packed = keras.tree.pack_sequence_as(args, list(tensors))
        return pure.call(model, packed, training=False)

    traced = tf.function(outputs, autograph=False).get_concrete_function(*inputs)
    names = [name for name, _ in named_leaves(traced.structured_outputs)]
    if isinstance(traced.structured_outputs, Mapping):
        return tuple(re.sub(r"\W", "_", name) for name in names)
    return tuple(f"output_{i}" for i in range(len(names)))


def in_float32(served: Served) -> list[str]:
    """Makes a model with mixed precision compute in float32, like its variables.

    Other runtimes have no mixed precision, or round in other places. bfloat16 has only three
    digits, so the outputs would differ.

    Returns:
        A note about that for the user, or an empty list if nothing changed.
    """
    mixed = [
        layer
        for layer in pure.all_layers(served.model)
        if layer.dtype_policy.compute_dtype != layer.dtype_policy.variable_dtype
    ]
    for layer in mixed:
        layer.dtype_policy = keras.DTypePolicy(layer.dtype_policy.variable_dtype)
    return ["the file computes in float32, not in mixed precision like the run"] if mixed else []


def reason(error: BaseException) -> str:
    """The type of an error and the first sentence of its message."""
    sentence = first_line(error).split(". ")[0].rstrip(".")
    return f"{type(error).__name__}: {sentence[:300]}."
