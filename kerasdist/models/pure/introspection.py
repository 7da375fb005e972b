"""Answers questions about a compiled model, a metric, an optimizer or a callback."""

from __future__ import annotations

import inspect
import types
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend as keras_backend
from keras.src.trainers.trainer import Trainer

# Optimizers whose `apply` computes something else than their formula, and what to use instead.
REFUSED_OPTIMIZERS = {
    "ScheduleFreeAdamW": (
        "in Keras 3.15 with TensorFlow it reads its momentum after updating it, while its formula "
        "uses the value before",
        "adamw",
    ),
}


def is_model(value: Any) -> bool:
    """Whether a value has Keras's `fit`: a `keras.Model`, or a layer that is a trainer as well."""
    return isinstance(value, keras.Model) or (
        isinstance(value, keras.layers.Layer) and isinstance(value, Trainer)
    )


def get_mask(tensor: tf.Tensor) -> tf.Tensor | None:
    return keras_backend.get_keras_mask(tensor)


def set_mask(tensor: tf.Tensor, mask: tf.Tensor) -> None:
    keras_backend.set_keras_mask(tensor, mask)


def overrides(model: keras.Model, method: str) -> bool:
    """Whether the model's class replaces a method of `keras.Model`."""
    return getattr(type(model), method) is not getattr(keras.Model, method)


def preprocesses(model: keras.Model, method: str) -> bool:
    """Whether `method` is KerasHub's, which only adds preprocessing to Keras's own method."""
    owner = next(kind for kind in type(model).__mro__ if method in vars(kind))
    return owner.__module__.startswith("keras_hub.") and hasattr(model, "preprocess_samples")


def compilation(model: keras.Model) -> tuple[Any, Any]:
    """What `compile` made: `(loss, optimizer)`, or Nones for a model that is not compiled."""
    if not model.compiled:
        return None, None
    return model._compile_loss, model.optimizer


def compile_arguments(model: keras.Model) -> dict[str, Any]:
    """What `compile` was given."""
    known = getattr(model, "_compile_config", None) if model.compiled else None
    return {} if known is None else dict(known.config)


def forgotten_arguments(thing: Any) -> dict[str, Any]:
    """The arguments of a loss or metric that its `get_config` leaves out (`delta` of Keras 3.15's
    `Huber`)."""
    given = getattr(thing, "_fn_kwargs", None)
    if not given:
        return {}
    saved, accepted = thing.get_config(), inspect.signature(type(thing)).parameters
    return {k: v for k, v in given.items() if k not in saved and k in accepted}


def compiled_functions(model: keras.Model) -> list[Any]:
    """The functions that `compile` was given as losses and metrics, also those within wrappers."""
    given = keras.tree.flatten(compile_arguments(model))
    inner = [getattr(item, name, None) for item in given for name in ("fn", "_fn")]
    return [item for item in (*given, *inner) if isinstance(item, types.FunctionType)]


def mark_of_compilation(model: keras.Model) -> Any:
    """An object that each `compile` makes anew, also one without a loss; None before the first."""
    return model._loss_tracker if model.compiled else None


def in_order(model: keras.Model, logs: dict[str, Any]) -> Any:
    """What `evaluate` returns without `return_dict`: a list in the metrics' order, or one value."""
    return model._flatten_metrics_in_order(logs)


def adds_up(metric: keras.metrics.Metric, *, has_rows_of_numbers: bool = True) -> bool:
    """Whether a compiled metric's state over a batch is the sum of its states over the shards.

    Keras's own metrics are sums. A custom function may return a mean over its batch, and a custom
    class may do anything. So do Keras's losses that compare the examples of a batch, such as
    `dice`, and functions along the axis of the examples: an `axis` that was given, or the last one
    without `has_rows_of_numbers`, if an output has one number per example and no second axis.
    """
    if not type(metric).__module__.startswith("keras."):
        return False
    if not isinstance(metric, keras.metrics.MeanMetricWrapper):
        return True
    function = metric._fn
    module = getattr(function, "__module__", "") or ""
    if not isinstance(function, types.FunctionType) or not module.startswith("keras."):
        return False
    if module.startswith("keras.src.losses.") and function not in _PER_EXAMPLE:
        return False
    if not has_rows_of_numbers and function not in _PER_NUMBER:
        return False
    return metric._fn_kwargs.get("axis", -1) == -1


def loss_so_far(model: keras.Model) -> tf.Tensor:
    """The mean loss over the examples since the metrics were reset."""
    return model._loss_tracker.result()


def compiled_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    return list(model._compile_metrics.metrics) if model._compile_metrics is not None else []


def higher_is_better(model: keras.Model) -> dict[str, bool]:
    """Whether a higher value of a metric is better, by its name in the logs.

    Only of metrics that say so, as all of Keras's do that have a better side. The metrics are
    built.
    """
    metrics = compiled_metrics(model)
    try:
        names = list(model._compile_metrics.result()) if metrics else []
    except Exception:  # noqa: BLE001 - a method of the user's, before there is anything to return
        names = []
    if len(names) != len(metrics):
        names = [metric.name for metric in metrics]
    named = [*((m.name, m) for m in tracked_metrics(model)), *zip(names, metrics, strict=True)]
    said = {name: getattr(metric, "_direction", None) for name, metric in named}
    return {name: way == "up" for name, way in said.items() if way in ("up", "down")}


def tracked_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """Metrics that are attributes of the model. Its `call` or `compute_loss` may update them."""
    own = {id(m) for m in compiled_metrics(model)}
    own.add(id(model._compile_metrics))
    own.add(id(model._loss_tracker))
    if model._compile_loss is not None:
        own |= {id(m) for m in model._compile_loss.metrics}
    return [m for m in model.metrics if id(m) not in own]


def sparse_label_outputs(model: keras.Model) -> list[tuple[tuple[str | int, ...], int | None]]:
    """`(path into the targets, ignored class)` of each loss that takes class numbers."""
    if model._compile_loss is None or not model._compile_loss.built:
        return []
    found = []
    for path, loss, _, _ in model._compile_loss._flat_losses:
        function = getattr(loss, "fn", None)
        if function is keras.losses.sparse_categorical_crossentropy:
            found.append((tuple(path), getattr(loss, "ignore_class", None)))
    return found


def loss_scale(
    optimizer: keras.optimizers.Optimizer,
) -> tuple[keras.optimizers.Optimizer, keras.Variable | None, keras.Variable | None]:
    """`(inner optimizer, scale, growth counter)`. The last two are None without a loss scale."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        # Its variables exist only after it is built.
        scale, counter = (
            (optimizer.dynamic_scale, optimizer.step_counter) if optimizer.built else (None, None)
        )
        return optimizer.inner_optimizer, scale, counter
    return optimizer, None, None


def initial_epoch(model: keras.Model) -> int:
    """The epoch at which a callback (`BackupAndRestore`) wants training to start."""
    return model._initial_epoch or 0


def wants_batches(callback: keras.callbacks.Callback, kind: str) -> bool:
    """Whether a callback is called on every batch of `kind` ("train" or "test")."""
    by_epochs = (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore)
    if isinstance(callback, by_epochs) and callback.save_freq == "epoch":
        return False
    names = [f"on_{kind}_batch_begin", f"on_{kind}_batch_end"]
    if kind == "train":
        names += ["on_batch_begin", "on_batch_end"]
    return any(not getattr(getattr(callback, n), "_is_default", False) for n in names)


def all_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """The model and every layer inside it."""
    return list(model._flatten_layers())


def state_of_keras_layers(model: keras.Model) -> set[int]:
    """Ids of the variables of Keras's own layers. kerasdist knows what that state means.

    A Keras layer inside a custom layer still owns its variables.
    """
    owners: dict[int, keras.layers.Layer] = {}
    for layer in model._flatten_layers():  # Outer ones first.
        owners.update({id(v): layer for v in layer.weights})
    kinds = (keras.layers.BatchNormalization, keras.layers.SpectralNormalization)
    return {
        key
        for key, layer in owners.items()
        if type(layer).__module__.startswith("keras.") or isinstance(layer, kinds)
    }


def has_own_calls(model: keras.Model) -> bool:
    """Whether a forward pass runs other code than that of Keras's and KerasHub's layers."""
    layers = list(model._flatten_layers())
    operations = [o for layer in layers for o in getattr(layer, "operations", ())]
    return any(_is_own(layer) for layer in layers) or not all(
        isinstance(operation, keras.layers.Layer) for operation in operations
    )


def _is_own(layer: keras.layers.Layer) -> bool:
    kind, known = type(layer), ("keras.", "keras_hub.")
    if isinstance(layer, keras.Model):  # A class of its own may keep Keras's `call`.
        return not kind.call.__module__.startswith(known)
    return isinstance(layer, keras.layers.Lambda) or not kind.__module__.startswith(known)


# Keras's losses whose value for an example does not depend on the other examples.
_PER_EXAMPLE = {
    getattr(keras.losses, name)
    for name in (
        "binary_crossentropy",
        "binary_focal_crossentropy",
        "categorical_crossentropy",
        "categorical_focal_crossentropy",
        "categorical_hinge",
        "cosine_similarity",
        "ctc",
        "hinge",
        "huber",
        "kl_divergence",
        "log_cosh",
        "mean_absolute_error",
        "mean_absolute_percentage_error",
        "mean_squared_error",
        "mean_squared_logarithmic_error",
        "poisson",
        "sparse_categorical_crossentropy",
        "squared_hinge",
    )
}


# Those of them that are a mean over the last axis, or nothing but numbers, and two metrics: on an
# output without a second axis they are a mean over examples, too.
_PER_NUMBER = {
    getattr(module, name)
    for module, names in (
        (
            keras.losses,
            (
                "binary_crossentropy",
                "binary_focal_crossentropy",
                "hinge",
                "huber",
                "log_cosh",
                "mean_absolute_error",
                "mean_absolute_percentage_error",
                "mean_squared_error",
                "mean_squared_logarithmic_error",
                "poisson",
                "squared_hinge",
            ),
        ),
        (keras.metrics, ("binary_accuracy",)),
    )
    for name in names
}


def has_own_loss(model: keras.Model, *, has_rows_of_numbers: bool = True) -> bool:
    """Whether the loss is anything but Keras's own losses that are means over examples.

    Without `has_rows_of_numbers`, an output has one number per example and no second axis.
    """
    if overrides(model, "compute_loss"):
        return True
    known = _PER_EXAMPLE if has_rows_of_numbers else _PER_NUMBER
    return not all(_is_per_example(loss, known) for loss in _losses(model))


def loss_names(model: keras.Model) -> str:
    """The name of the loss for messages."""
    if overrides(model, "compute_loss"):
        return f"{type(model).__name__}.compute_loss"
    names = [getattr(getattr(loss, "fn", None), "__name__", loss.name) for loss in _losses(model)]
    return ", ".join(dict.fromkeys(names)) or "add_loss"


def _losses(model: keras.Model) -> list[Any]:
    """The compiled losses, one per output. Empty before the losses are built."""
    if model._compile_loss is None:
        return []
    return [loss for _, loss, _, _ in model._compile_loss._flat_losses or ()]


def _is_per_example(loss: Any, known: set[Any]) -> bool:
    if not type(loss).__module__.startswith("keras.") or getattr(loss, "fn", None) is None:
        return False
    # Another axis may be the axis of the examples.
    return loss.fn in known and loss._fn_kwargs.get("axis", -1) == -1
