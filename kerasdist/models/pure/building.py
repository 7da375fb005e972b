"""Creates the variables of a model, its loss, its metrics and its optimizer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend as keras_backend
from keras.src.models.functional import Functional

from kerasdist.models.fields import Example
from kerasdist.models.pure.forward import call
from kerasdist.models.pure.layers import older_layers
from kerasdist.models.tensors.composites import is_ragged, is_sparse


def build(model: keras.Model, example: Example, *, training: bool = False) -> None:
    """Creates the variables of the model, its loss and metrics, without running anything.

    `example` holds a `tf.TensorSpec` for each tensor. If the model was made in the scope of a
    `tf.distribute` strategy, its variables are created in that scope, as in Keras.
    """
    loss, metrics = (
        (model._compile_loss, model._compile_metrics) if example.y is not None else (None, None)
    )
    need_loss = loss is not None and not loss.built
    need_metrics = metrics is not None and not metrics.built
    if not (need_loss or need_metrics) and all(layer.built for layer in model._flatten_layers()):
        return
    example = Example(*(_symbolic(part) for part in vars(example).values()))
    with model.distribute_strategy.scope(), older_layers.patched():
        outputs = _known_outputs(model, example.args)
        if outputs is None:
            outputs = keras_backend.compute_output_spec(
                lambda *args: call(model, args, training), *example.args
            )
        if need_metrics:
            keras_backend.compute_output_spec(
                model.compute_metrics, example.x, example.y, outputs, example.sample_weight
            )
        if need_loss:
            keras_backend.compute_output_spec(loss, example.y, outputs, example.sample_weight)


def _known_outputs(model: keras.Model, args: tuple[Any, ...]) -> Any:
    """What Keras found for such inputs when the model was made from its layers, else None.

    To find it again takes as long as a trace.
    """
    is_made_of_layers = type(model).call in (Functional.call, keras.Sequential.call)
    if not is_made_of_layers or not all(each.built for each in model._flatten_layers()):
        return None
    inputs = getattr(model, "inputs", None)  # A `Sequential` may not know them.
    given = tf.nest.flatten(args)
    if inputs is None or len(inputs) != len(given):
        return None
    is_same = all(
        isinstance(one, keras.KerasTensor)
        and one.shape[1:] == other.shape[1:]
        and (one.dtype, one.sparse, one.ragged) == (other.dtype, other.sparse, other.ragged)
        for one, other in zip(given, inputs, strict=True)
    )
    if not is_same:
        return None
    return model.compute_output_spec(model.input if isinstance(model, Functional) else inputs[0])


def _symbolic(structure: Any) -> Any:
    def symbol(spec: tf.TypeSpec | None) -> keras.KerasTensor | None:
        if spec is None:
            return None
        kind: dict[str, Any] = {}
        if is_sparse(spec):
            kind = {"sparse": True}
        elif is_ragged(spec):
            splits = spec.row_splits_dtype
            kind = {"ragged": True, "ragged_rank": spec.ragged_rank, "row_splits_dtype": splits}
        dtype = keras_backend.standardize_dtype(spec.dtype)
        return keras.KerasTensor(spec.shape, dtype, **kind)

    return tf.nest.map_structure(symbol, structure)


def build_optimizer(model: keras.Model) -> None:
    """Creates the optimizer's variables, in the scope of the strategy that it was made in."""
    optimizer = model.optimizer
    if model.trainable_variables and not optimizer.built:
        with optimizer._distribution_strategy.scope():
            optimizer.build(model.trainable_variables)


def unknown_to_optimizer(model: keras.Model) -> list[keras.Variable]:
    """Weights that train now, and did not when the optimizer was built: it cannot update them."""
    optimizer = getattr(model.optimizer, "inner_optimizer", model.optimizer)
    if optimizer is None or not optimizer.built:
        return []
    known = {id(v) for v in optimizer._trainable_variables}
    return [v for v in model.trainable_variables if id(v) not in known]


def has_weights(model: keras.Model) -> bool:
    """Whether the weights of the model exist.

    A model without `call`, such as a usual GAN, is never built itself. Its parts are.
    """
    parts = [layer for layer in model._flatten_layers() if layer is not model]
    return model.built or (bool(model.weights) and all(layer.built for layer in parts))


@contextlib.contextmanager
def as_built(model: keras.Model) -> Iterator[None]:
    """Within it, Keras saves and loads the weights of a model whose parts are built."""
    was_built = model.built
    model.built = True
    try:
        yield
    finally:
        model.built = was_built
