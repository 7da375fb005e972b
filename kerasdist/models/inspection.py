"""Checks of a model against its data and settings, before anything is compiled."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.errors import KerasdistError, closest
from kerasdist.models import graphs, pure
from kerasdist.models.class_weights import weigh_classes
from kerasdist.models.contract import Example, fields_read, read, targets_read


@dataclass(frozen=True)
class Labels:
    """A target that holds class numbers: where it is, and how many classes there are."""

    path: tuple
    num_classes: int
    ignored: int | None
    name: str | None = None
    number: int = 0

    def of(self, y: Any) -> Any:
        """By its path among the outputs; else by the output's name or number, as Keras finds it."""
        found = y
        try:
            for key in self.path:
                if not isinstance(found, (Mapping, list, tuple)):  # A row of an array otherwise.
                    raise KeyError(key)
                found = found[key]
            return found
        except (KeyError, IndexError, TypeError):
            if isinstance(y, Mapping) and self.name in y:
                return y[self.name]
        leaves = keras.tree.flatten(y)
        if self.number >= len(leaves):
            raise KerasdistError(
                f"Received {len(leaves)} targets for a model whose output number {self.number} "
                "(from 0) has a loss. Expected a target for each. Add the targets."
            )
        return leaves[self.number]


@dataclass(frozen=True)
class Findings:
    """What a trace of model, loss and metrics showed; nothing was run."""

    num_denominators: int = 0
    gather_metrics: bool = False
    has_own_loss_terms: bool = False
    labels: tuple[Labels, ...] = ()
    # Variables that a forward pass changes, but for those of Keras's own layers.
    own_state: tuple[keras.Variable, ...] = ()
    random_operations: tuple[str, ...] = ()
    has_targets: bool = True


def check_policy(precision: Any) -> None:
    """Whether Keras knows a precision by that name."""
    if precision is None:
        return
    try:
        keras.dtype_policies.get(precision)
    except (ValueError, TypeError):
        raise KerasdistError(
            f"Received `precision={precision!r}`. Expected a dtype policy of Keras. Give for "
            "example `precision='mixed_bfloat16'`, or leave it out."
        ) from None


def check_precision(model: keras.Model, precision: str | None) -> None:
    """A layer keeps the policy it was made with: asking for another is an error."""
    if precision is None:
        return
    inputs = keras.layers.InputLayer
    layers = [v for v in pure.all_layers(model) if v is not model and not isinstance(v, inputs)]
    layers = layers or [model]
    own = [layer.dtype_policy.name for layer in layers]
    # A mixed model's last layers are often float32 on purpose.
    other = [i for i, name in enumerate(own) if name != precision]
    if precision in own:
        other = [i for i in other if own[i] != "float32"]
    if other:
        raise KerasdistError(
            f"Received `precision={precision!r}` for a model whose layer {layers[other[0]].name!r} "
            f"was made with the policy {own[other[0]]!r}. Expected the same for both. Pass `fit` a "
            "function that builds the model, or build it after "
            f"`keras.config.set_dtype_policy({precision!r})`."
        )


def check_features(model: keras.Model, spec: Any, *, need_targets: bool = True) -> Example:
    """Reads a spec of batches as the model will, and refuses what is missing or no number."""
    example = read(model, spec, need_targets=need_targets)
    for path, leaf in fields_read(model, spec):
        if leaf.dtype == tf.string:
            role = "feature" if any(leaf is x for x in tf.nest.flatten(example.x)) else "target"
            raise KerasdistError(
                f"Received strings as the {role} {path!r}. Expected numbers: devices cannot hold "
                "strings. Map them to numbers in the data, for example with "
                "`keras.layers.StringLookup` in a `map`."
            )
    if isinstance(example.x, Mapping):
        _check_inputs(model, example.x)
    needs_targets = need_targets and not pure.overrides(model, "compute_loss")
    if needs_targets and getattr(model, "loss", None) is not None and example.y is None:
        names = sorted(str(name) for name in spec) if isinstance(spec, Mapping) else None
        raise KerasdistError(
            f"Received data with {f'the fields {names}' if names else 'features alone'} and no "
            f"targets for {type(model).__name__!r}, whose loss compares with them. Expected "
            "`(features, targets)`, or a `kerasdist.Model` that names its `features` and "
            "`targets`. Add the targets."
        )
    return example


def _check_inputs(model: keras.Model, x: Mapping) -> None:
    """The inputs of a functional model by name."""
    if not isinstance(model, keras.Sequential) and getattr(model, "inputs", None):
        structure = model.input
        names = structure if isinstance(structure, Mapping) else [t.name for t in model.inputs]
        for name in names:
            if name not in x:
                raise KerasdistError(
                    f"Received data with the features {sorted(str(n) for n in x)}, but the model "
                    f"has the input {name!r}. Expected a field of that name.{closest(name, x)} "
                    "Rename the field, or the input."
                )


def inspect(
    model: keras.Model,
    spec: Any,
    *,
    to_train: bool = True,
    class_weight: dict[int, float] | None = None,
) -> Findings:
    """Builds what is unbuilt and traces one forward pass with loss and metrics."""
    example = check_features(model, spec)
    name = type(model).__name__
    try:
        pure.build(model, example, training=to_train)
        if to_train:
            pure.build_optimizer(model)
        trace = _trace(model, spec, training=to_train, class_weight=class_weight)
    except KerasdistError:
        raise
    except Exception as error:
        raise _unreadable(model, "batches", spec, error) from error
    forward, outputs = trace.forward, trace.outputs
    if forward.loss is None:
        raise KerasdistError(
            f"Received the model {name!r} without a loss. Expected one. Call "
            "`model.compile(loss=...)`, override `compute_loss`, or use `add_loss` in a layer."
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
    _check_targets(model, example.y, outputs)
    gather = pure.overrides(model, "compute_metrics") or not all(
        pure.adds_up(m) for m in pure.compiled_metrics(model)
    )
    return Findings(
        num_denominators=len(trace.shard.local_denominators),
        gather_metrics=gather,
        has_own_loss_terms=forward.used_add_loss or pure.has_own_loss(model),
        labels=tuple(_labels(model, outputs)),
        own_state=_own_state(model, forward),
        random_operations=tuple(trace.random_operations),
    )


def _own_state(model: keras.Model, forward: pure.Forward) -> tuple[keras.Variable, ...]:
    roles = pure.parts(model)
    of_keras = pure.state_of_keras_layers(model)
    return tuple(
        v
        for v in (*roles.trainable, *roles.other)
        if id(v) in forward.changed and id(v) not in of_keras
    )


def check_shapes(model: keras.Model, spec: Any, where: str) -> None:
    """Whether a built model can read batches of sizes that vary as in `spec`."""
    try:
        _trace(model, spec, training=True)
    except KerasdistError:
        raise
    except Exception as error:
        raise _unreadable(model, where, spec, error) from error


def _unreadable(model: keras.Model, what: str, spec: Any, error: Exception) -> KerasdistError:
    fields = fields_read(model, spec)
    shapes = ", ".join(f"{path}: {s.dtype.name}{tuple(s.shape)}" for path, s in fields)
    return KerasdistError(
        f"Received {what} ({shapes}), which the model {type(model).__name__!r} or its loss cannot "
        f"read: {_first_line(error)} Expected shapes and types that fit. Change the data or the "
        "model; a traceback is shown above this one."
    )


# Losses that compare number by number. Keras would repeat a single number to fit the other side.
_ELEMENTWISE = {
    getattr(keras.losses, name)
    for name in (
        "mean_squared_error",
        "mean_absolute_error",
        "mean_absolute_percentage_error",
        "mean_squared_logarithmic_error",
        "huber",
        "log_cosh",
        "poisson",
        "binary_crossentropy",
    )
}


def _check_targets(model: keras.Model, y: Any, outputs: Any) -> None:
    """Targets and outputs of one shape, where the loss compares them number by number."""
    loss = getattr(model, "loss", None)
    if not isinstance(y, tf.TensorSpec) or not isinstance(outputs, tf.TensorSpec):
        return
    if isinstance(loss, (dict, list, tuple)) or loss is None:
        return
    loss = keras.losses.get(loss)
    if getattr(loss, "fn", loss) not in _ELEMENTWISE:
        return
    own, other = y.shape, outputs.shape
    if abs(own.rank - other.rank) == 1:  # Keras adds or removes a last dimension of 1.
        longer, shorter = (own, other) if own.rank > other.rank else (other, own)
        own, other = (longer[:-1], shorter) if longer[-1] in (1, None) else (longer, shorter)
    if own.rank != other.rank or not own[1:].is_compatible_with(other[1:]):
        raise KerasdistError(
            f"Received targets of the shape {tuple(y.shape)} for outputs of the shape "
            f"{tuple(outputs.shape)}. Expected the same: the loss compares number by number. "
            "Change the data, or the model's last layer."
        )


def build_for_prediction(model: keras.Model, spec: Any) -> Findings:
    """Builds a model from the features alone, and traces a prediction."""
    if spec is None:
        raise KerasdistError(
            "Received `data` without a single batch. Expected at least one. Check how it is read."
        )
    example = check_features(model, spec, need_targets=False)
    try:
        pure.build(model, Example(example.args, example.x, None, None))
        return Findings(own_state=_trace_prediction(model, spec), has_targets=False)
    except KerasdistError:
        raise
    except Exception as error:
        raise _unreadable(model, "batches", spec, error) from error


@dataclass(frozen=True)
class _Trace:
    forward: pure.Forward
    shard: pure.Shard
    outputs: Any
    random_operations: list[str]


def _trace(
    model: keras.Model,
    spec: Any,
    *,
    training: bool,
    class_weight: dict[int, float] | None = None,
) -> _Trace:
    found: dict[str, Any] = {}

    def forward(batch):
        # Weights of classes change what some losses divide by.
        example = weigh_classes(read(model, batch), class_weight)
        count = tf.shape(tf.nest.flatten(example.args)[0])[0]
        shard = pure.Shard(count, count)
        roles = pure.parts(model)
        passed = pure.forward(
            model, roles, _zeros(roles), example, shard=shard, training=training, with_metrics=True
        )
        outputs = tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), passed.outputs)
        found.update(forward=passed, shard=shard, outputs=outputs)

    graph = _graph(forward, spec)
    if found["forward"].outside:
        # No layer owns them; Keras's own fit changes them all the same.
        pure.adopt(model, found["forward"].outside)
        graph = _graph(forward, spec)
    _refuse_assigned(model, graph)
    return _Trace(**found, random_operations=graphs.random_operations(graph))


def _zeros(roles: pure.Parts) -> tuple[list, list, list]:
    """Values for a trace, which computes nothing with them."""

    def of(variables):
        return [tf.zeros(v.shape, v.dtype) for v in variables]

    return of(roles.trainable), of(roles.other), of(roles.seeds)


def _graph(function: Any, spec: Any) -> Any:
    with pure.patched():
        return tf.function(function, autograph=False).get_concrete_function(spec).graph


def _refuse_assigned(model: keras.Model, graph: Any) -> None:
    for name in graphs.assigned_variables(graph):
        raise KerasdistError(
            f"The model {type(model).__name__!r} assigns the `tf.Variable` {name!r} while it runs. "
            "Expected a `keras.Variable` or a layer's weight: these have one value on all devices, "
            "and are saved and restored. Make it with `keras.Variable(...)`, or with "
            "`self.add_weight(...)` in a layer."
        )


def _trace_prediction(model: keras.Model, spec: Any) -> tuple[keras.Variable, ...]:
    """State that a prediction changes, but for that of Keras's own layers."""
    found: list[pure.Forward] = []

    def forward(batch):
        example = read(model, batch, need_targets=False)
        roles = pure.parts(model)
        found.append(pure.predict(model, roles, _zeros(roles), example))

    graph = _graph(forward, spec)
    if found[-1].outside:
        pure.adopt(model, found[-1].outside)
        graph = _graph(forward, spec)
    _refuse_assigned(model, graph)
    return _own_state(model, found[-1])


def _labels(model: keras.Model, outputs: Any):
    for path, ignored in pure.sparse_label_outputs(model):
        output = outputs
        try:
            for key in path:
                output = output[key]
        except (KeyError, IndexError, TypeError):
            continue
        if isinstance(output, tf.TensorSpec) and output.shape.rank and output.shape[-1]:
            number = next(i for i, t in enumerate(keras.tree.flatten(outputs)) if t is output)
            names = getattr(model, "output_names", None) or ()
            name = names[number] if number < len(names) else None
            yield Labels(path, int(output.shape[-1]), ignored, name, number)


def _first_line(error: Exception) -> str:
    """The line of a message that says what is wrong, without Keras's frame around it."""
    text = re.sub("\x1b\\[[0-9;]*m", "", str(error))
    text = text.split("Error encountered:")[-1]
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    frame = ("Exception encountered when calling", "in user code:", "File ", "Arguments received")
    lines = [line for line in lines if not line.startswith(frame)]
    return (lines[0] if lines else type(error).__name__).rstrip(".") + "."


def check_arrays(
    model: keras.Model,
    arrays: Any,
    labels: tuple[Labels, ...],
    name: str,
    *,
    allow_nan: bool = False,
) -> None:
    """The checks of a stream's batches, over data that is in memory, at once."""
    for path, array in () if allow_nan else fields_read(model, arrays):
        bad = _first_not_finite(array) if array.dtype.kind == "f" else None
        if bad is not None:
            raise KerasdistError(not_finite_message(name, path, f"example {bad} (from 0)"))
    y = targets_read(model, arrays)
    for label in labels if y is not None else ():
        values = label.of(y)
        wrong = ~((values >= 0) & (values < label.num_classes))  # NaN is wrong as well.
        if label.ignored is not None:
            wrong &= values != label.ignored
        if wrong.any():
            place = f"example {int(np.argwhere(wrong)[0][0])} (from 0)"
            raise KerasdistError(label_message(name, label, f"{values[wrong].flat[0]}", place))


def _first_not_finite(array: np.ndarray, rows: int = 4096) -> int | None:
    for start in range(0, len(array), rows):
        bad = ~np.isfinite(array[start : start + rows])
        if bad.any():
            return start + int(np.argwhere(bad)[0][0])
    return None


def not_finite_message(name: str, where: str, place: str) -> str:
    return (
        f"Received NaN or infinity in `{name}` ({where}, {place}). Expected finite numbers: one of "
        "them would spoil all weights. Remove the example or replace the value, for example with "
        "`np.nan_to_num`. If the model or the loss masks such values, give `allow_nan=True` "
        "(`--allow-nan`)."
    )


def sizes_message(name: str, names: str, sizes: str, place: str) -> str:
    return (
        f"Received `{name}` with {sizes} examples ({names}; {place}). Expected the same number in "
        "each field, and at least one. Look at how this batch is made."
    )


def label_message(name: str, label: Labels, value: str, place: str) -> str:
    return (
        f"Received the label {value} in `{name}` ({place}). Expected classes from 0 to "
        f"{label.num_classes - 1}: the model has {label.num_classes} outputs. Correct the label, "
        "or give the model as many outputs as there are classes."
    )
