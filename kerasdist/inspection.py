"""Checks of a model against its data and settings, before anything is compiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist import pure
from kerasdist.errors import KerasdistError
from kerasdist.models import Example, named_leaves, read


@dataclass(frozen=True)
class Labels:
    """A target that holds class numbers: where it is, and how many classes there are."""

    path: tuple
    num_classes: int
    ignored: int | None

    def of(self, y: Any) -> Any:
        for key in self.path:
            y = y[key]
        return y


@dataclass(frozen=True)
class Findings:
    """What a trace of model, loss and metrics showed; nothing was run."""

    num_denominators: int
    gather_metrics: bool
    has_own_loss_terms: bool
    labels: tuple[Labels, ...]


def refuse_unsupported(model: keras.Model) -> None:
    """What cannot be exact, or would silently do something else, by name."""
    name = type(model).__name__
    for method, instead in (("train_step", "compute_loss"), ("test_step", "compute_loss")):
        if pure.overrides(model, method):
            raise KerasdistError(
                f"Received the model {name!r}, which overrides `{method}`. Expected Keras's own: "
                "the engine differentiates and updates by itself. Override "
                f"`{instead}(x, y, y_pred, sample_weight, training)` instead."
            )
    inner, _, _ = pure.loss_scale(model.optimizer)
    for optimizer in (inner, *getattr(inner, "optimizers", ())):
        kind = type(optimizer).__name__
        if kind in pure.REFUSED_OPTIMIZERS:
            reason, instead = pure.REFUSED_OPTIMIZERS[kind]
            raise KerasdistError(
                f"Received the optimizer {kind!r}. Expected another: {reason}. Use {instead!r}."
            )
        if optimizer.gradient_accumulation_steps:
            steps = optimizer.gradient_accumulation_steps
            raise KerasdistError(
                f"Received the optimizer {kind!r} with `gradient_accumulation_steps={steps}`. "
                "Expected none: it cannot run on several devices (Keras 3.15). Leave it out and "
                f"give `fit` {steps} times the `batch_size` with `shards={steps}` times the devices."
            )
        if optimizer.ema_overwrite_frequency and optimizer.use_ema:
            raise KerasdistError(
                f"Received the optimizer {kind!r} with "
                f"`ema_overwrite_frequency={optimizer.ema_overwrite_frequency}`. Expected none: "
                "training would go on from the average. Leave it out and use `fit(ema=...)`, which "
                "keeps the average beside the weights."
            )
    for layer in pure.all_layers(model):
        if isinstance(layer, keras.layers.BatchNormalization) and layer.synchronized:
            raise KerasdistError(
                f"Received the layer {layer.name!r} with `synchronized=True`. Expected "
                "`synchronized=False`: statistics are taken over each shard. Set it to False; for "
                "statistics over more examples use fewer shards."
            )


def check_precision(model: keras.Model, precision: str | None) -> None:
    """A built model keeps its precision: asking for another is an error."""
    if precision is None:
        return
    for layer in pure.all_layers(model):
        own = layer.dtype_policy.name
        if layer.variables and own != precision:
            raise KerasdistError(
                f"Received `precision={precision!r}` for a model whose layer {layer.name!r} was "
                f"built with the policy {own!r}. Expected the same for both. Pass `fit` a function "
                "that builds the model, or build it after "
                f"`keras.config.set_dtype_policy({precision!r})`."
            )


def check_features(model: keras.Model, spec: Any) -> Example:
    """Reads a spec of batches as the model will, and refuses features that are no numbers."""
    example = read(model, spec)
    for path, leaf in named_leaves(example.x):
        if leaf.dtype == tf.string:
            names = getattr(model, "features", None)
            where = repr(names) if isinstance(names, str) else path or "x"
            raise KerasdistError(
                f"Received strings as the feature {where}. Expected numbers: devices cannot hold "
                "strings. Map them to numbers in the data, for example with "
                "`keras.layers.StringLookup` in a `map`."
            )
    return example


def inspect(model: keras.Model, spec: Any) -> Findings:
    """Builds what is unbuilt and traces one forward pass with loss and metrics."""
    example = check_features(model, spec)
    name = type(model).__name__
    try:
        pure.build(model, example)
        if not model.trainable_variables:
            raise KerasdistError(
                f"Received the model {name!r} without trainable variables. Expected at least one. "
                "Unfreeze a layer, or use `kerasdist.evaluate`."
            )
        pure.build_optimizer(model)
        forward, shard, outputs = _trace(model, spec)
    except KerasdistError:
        raise
    except Exception as error:
        shapes = tf.nest.map_structure(lambda s: f"{s.dtype.name}{tuple(s.shape)}", spec)
        raise KerasdistError(
            f"Received batches of {shapes}, which the model {name!r} or its loss cannot read: "
            f"{_first_line(error)} Expected shapes and types that fit. Change the data or the "
            "model; a traceback is shown above this one."
        ) from error
    if forward.loss is None:
        raise KerasdistError(
            f"Received the model {name!r} without a loss. Expected one. Call `model.compile(loss=…)`, "
            "override `compute_loss`, or use `add_loss` in a layer."
        )
    for metric in pure.tracked_metrics(model):
        touched = {id(v) for v in metric.variables} & forward.updated_metrics
        if touched and not type(metric).__module__.startswith("keras."):
            raise KerasdistError(
                f"Received the metric {metric.name!r} of the class {type(metric).__name__!r}, "
                "updated while the model runs, where only a shard of the batch is seen. Expected "
                "one of Keras's own classes there, for example `keras.metrics.Mean`. Use one, or "
                "pass the metric to `compile(metrics=[...])`."
            )
    gather = pure.overrides(model, "compute_metrics") or not all(
        pure.adds_up(m) for m in pure.compiled_metrics(model)
    )
    return Findings(
        num_denominators=len(shard.local_denominators),
        gather_metrics=gather,
        has_own_loss_terms=forward.used_add_loss or pure.has_own_loss(model),
        labels=tuple(_labels(model, outputs)),
    )


def build_for_prediction(model: keras.Model, spec: Any) -> None:
    """Builds a model from the features alone."""
    if spec is None:
        raise KerasdistError(
            "Received `data` without a single batch. Expected at least one. Check how it is read."
        )
    example = read(model, spec, need_targets=False)
    pure.build(model, Example(example.args, example.x, None, None))


def _trace(model: keras.Model, spec: Any):
    found: dict[str, Any] = {}
    roles = pure.parts(model)

    def forward(batch):
        example = read(model, batch)
        count = tf.shape(tf.nest.flatten(example.args)[0])[0]
        shard = pure.Shard(count, count)
        state = (
            [tf.zeros(v.shape, v.dtype) for v in roles.trainable],
            [tf.zeros(v.shape, v.dtype) for v in roles.other],
            [tf.zeros(v.shape, v.dtype) for v in roles.seeds],
        )
        found["forward"] = pure.forward(
            model, roles, state, example, shard=shard, training=True, with_metrics=True
        )
        found["shard"] = shard
        found["outputs"] = tf.nest.map_structure(
            lambda t: tf.TensorSpec(t.shape, t.dtype), found["forward"].outputs
        )

    with pure.patched():
        tf.function(forward, autograph=False).get_concrete_function(spec)
    return found["forward"], found["shard"], found["outputs"]


def _labels(model: keras.Model, outputs: Any):
    for path, ignored in pure.sparse_label_outputs(model):
        output = outputs
        try:
            for key in path:
                output = output[key]
        except (KeyError, IndexError, TypeError):
            continue
        if isinstance(output, tf.TensorSpec) and output.shape.rank and output.shape[-1]:
            yield Labels(path, int(output.shape[-1]), ignored)


def _first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__).rstrip(".") + "."


def check_arrays(model: keras.Model, arrays: Any, labels: tuple[Labels, ...], name: str) -> None:
    """The checks of a stream's batches, over data that is in memory, at once."""
    example = read(model, arrays)
    for role in ("x", "y", "sample_weight"):
        for path, array in named_leaves(getattr(example, role)):
            if array.dtype.kind != "f":
                continue
            bad = _first_not_finite(array)
            if bad is not None:
                raise KerasdistError(not_finite_message(name, f"{role}/{path}".rstrip("/"), bad))
    for label in labels:
        values = label.of(example.y)
        wrong = (values < 0) | (values >= label.num_classes)
        if label.ignored is not None:
            wrong &= values != label.ignored
        if wrong.any():
            index = int(np.argwhere(wrong)[0][0])
            message = label_message(name, label, f"{values[wrong].flat[0]}", f"example {index}")
            raise KerasdistError(message)


def _first_not_finite(array: np.ndarray, rows: int = 4096) -> str | None:
    for start in range(0, len(array), rows):
        bad = ~np.isfinite(array[start : start + rows])
        if bad.any():
            return f"example {start + int(np.argwhere(bad)[0][0])}"
    return None


def not_finite_message(name: str, where: str, place: str) -> str:
    return (
        f"Received NaN or infinity in `{name}` ({where}, {place}). Expected finite numbers: one of "
        "them would spoil all weights. Remove the example or replace the value, for example with "
        "`np.nan_to_num`."
    )


def label_message(name: str, label: Labels, value: str, place: str) -> str:
    return (
        f"Received the label {value} in `{name}` ({place}). Expected classes from 0 to "
        f"{label.num_classes - 1}: the model has {label.num_classes} outputs. Correct the label, or "
        "give the model as many outputs as there are classes."
    )
