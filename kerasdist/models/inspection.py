"""Checks before compiling that a model, its loss and its metrics can read the data."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import tensorflow as tf

from kerasdist.errors import KerasdistError, closest, keras_reason
from kerasdist.models import pure, refusals
from kerasdist.models.fields import Batch, Example, fields_read, read
from kerasdist.models.losses import check_targets, input_hint, loss_hint
from kerasdist.models.own_steps.comparison import with_verdict
from kerasdist.models.own_steps.plans import StepPlan
from kerasdist.models.own_steps.tracing import plan_step
from kerasdist.models.tensors.composites import described, is_ragged
from kerasdist.models.traces import trace, trace_prediction
from kerasdist.models.value_checks import Labels
from kerasdist.models.whole_batch.tracked_metrics import touched


@dataclass(frozen=True)
class Findings:
    """What a trace of model, loss and metrics showed. Nothing was computed."""

    num_denominators: int = 0
    # Those of losses in `call`.
    num_call_denominators: int = 0
    gather_metrics: bool = False
    has_own_loss_terms: bool = False
    # Whether a loss multiplies one number for its batch by the weights of all examples.
    weighs_scalars: bool = False
    # Metrics that `call` or the loss updates.
    tracked: tuple[keras.metrics.Metric, ...] = ()
    # Whether a forward pass runs other code than that of Keras's layers.
    has_own_calls: bool = False
    # Whether a layer asks for the statistics of all replicas.
    synchronizes: bool = False
    labels: tuple[Labels, ...] = ()
    # Variables that a forward pass changes, without those of Keras's own layers.
    own_state: tuple[keras.Variable, ...] = ()
    random_operations: tuple[str, ...] = ()
    has_targets: bool = True
    # The states of the seed generators that an evaluation or a prediction draws from.
    drawn: tuple[keras.Variable, ...] = ()
    # The model's own step, if its class overrides Keras's.
    own_step: StepPlan | None = None

    def is_cut(self, shards: int) -> bool:
        """Whether a batch must have one row per example, in each field. Keras's steps need it."""
        return self.own_step is None or (shards > 1 and not self.own_step.must_be_whole)


def inspect(
    model: keras.Model,
    spec: Batch,
    *,
    to_train: bool = True,
    class_weight: dict[int, float] | None = None,
) -> Findings:
    """Builds what is not built yet, and traces one forward pass with loss and metrics."""
    example = check_features(model, spec)
    try:
        pure.build(model, example, training=to_train)
        if to_train:
            pure.build_optimizer(model)
            refusals.refuse_unfrozen(model)
        traced = trace(model, spec, training=to_train, class_weight=class_weight)
    except KerasdistError:
        raise
    except Exception as error:
        raise _unreadable(model, "batches", spec, error) from error
    if traced.forward.loss is None:
        raise KerasdistError(
            f"The model {type(model).__name__!r} has no loss. Expected a loss to minimise. Call "
            "`model.compile(loss=...)`, override `compute_loss`, or use `add_loss` in a layer."
        )
    _refuse_own_metrics(model, traced.forward)
    check_targets(model, example.y, traced.outputs)
    # Along the last axis of an output with a single axis are the examples.
    ranks = [output.shape.rank for output in tf.nest.flatten(traced.outputs)]
    rows = {"has_rows_of_numbers": all(rank is None or rank > 1 for rank in ranks)}
    gather = pure.overrides(model, "compute_metrics") or not all(
        pure.adds_up(m, **rows) for m in pure.compiled_metrics(model)
    )
    return Findings(
        num_denominators=len(traced.shard.local_denominators),
        num_call_denominators=traced.forward.num_call_denominators,
        gather_metrics=gather,
        has_own_loss_terms=traced.forward.used_add_loss or pure.has_own_loss(model, **rows),
        weighs_scalars=traced.shard.weighs_scalars,
        tracked=touched(model, traced.forward),
        has_own_calls=pure.has_own_calls(model),
        synchronizes=traced.shard.asks_replicas,
        labels=tuple(_labels(model, traced.outputs)),
        own_state=traced.own_state(model),
        random_operations=traced.random_operations,
        drawn=() if to_train else traced.drawn(model),
    )


def inspect_own(
    model: keras.Model, method: str, spec: Batch, first_batch: Callable[[], Batch], shards: int
) -> Findings:
    """Builds what is not built yet, and traces a step that the model's class overrides.

    On several shards it also compares the step on the first batch with the step on parts of it.
    """
    return compared_own(trace_own(model, method, spec), model, first_batch, shards)


def trace_own(model: keras.Model, method: str, spec: Batch) -> Findings:
    """The part of `inspect_own` that needs no batch."""
    plan = plan_step(model, method, spec)
    # Any of them: a step may draw what it likes.
    drawn = () if method == "train_step" else pure.parts(model).seeds
    return Findings(
        own_step=plan,
        random_operations=plan.random_operations,
        synchronizes=plan.synchronizes,
        drawn=drawn,
    )


def compared_own(
    findings: Findings, model: keras.Model, first_batch: Callable[[], Batch], shards: int
) -> Findings:
    """The part of `inspect_own` that needs a batch."""
    if shards == 1 or findings.own_step is None:
        return findings
    return replace(findings, own_step=with_verdict(model, findings.own_step, first_batch()))


def build_for_prediction(model: keras.Model, spec: Batch | None) -> Findings:
    """Builds a model from the features alone, and traces a prediction."""
    if spec is None:
        raise KerasdistError(
            "Received `data` without a single batch. Expected at least one. Check the code that "
            "reads it."
        )
    example = check_features(model, spec, need_targets=False)
    try:
        pure.build(model, Example(example.args, example.x, None, None))
        own_state, drawn = trace_prediction(model, spec)
        return Findings(
            own_state=own_state,
            has_targets=False,
            has_own_calls=pure.has_own_calls(model),
            drawn=drawn,
        )
    except KerasdistError:
        raise
    except Exception as error:
        raise _unreadable(model, "batches", spec, error) from error


def check_shapes(model: keras.Model, spec: Batch, where: str) -> None:
    """Checks that a built model can read batches whose sizes vary as in `spec`."""
    if any(pure.overrides(model, method) for method in ("train_step", "test_step")):
        return  # Its own step need not call the model. It is traced again when it is compiled.
    try:
        trace(model, spec, training=True)
    except KerasdistError:
        raise
    except Exception as error:
        raise _unreadable(model, where, spec, error) from error


def check_features(model: keras.Model, spec: Batch, *, need_targets: bool = True) -> Example:
    """Reads a spec as the model reads batches. Refuses missing fields."""
    example = read(model, spec, need_targets=need_targets)
    if isinstance(example.x, Mapping):
        _check_inputs(model, example.x)
    else:
        _check_ragged(model, tf.nest.flatten(example.x))
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


def _check_inputs(model: keras.Model, x: Mapping[str, Any]) -> None:
    """A functional model reads named features by the names of its inputs."""
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


def _check_ragged(model: keras.Model, x: Sequence[tf.TypeSpec]) -> None:
    """Rows of different lengths do not fit an input of one length. Keras fails when it runs."""
    inputs = getattr(model, "inputs", None) or ()
    for given, own in zip(x, inputs, strict=False) if len(x) == len(inputs) else ():
        sizes = zip(given.shape, own.shape, strict=False)
        if is_ragged(given) and not own.ragged and any(a is None and b for a, b in sizes):
            raise KerasdistError(
                f"Received {described(given)} for the model's input {own.name!r} of the shape "
                f"{tuple(own.shape)}. Expected rows of that size. Use `.to_tensor()` in a `map`, "
                "or `keras.Input(..., ragged=True)` and layers that read ragged tensors."
            )


def _refuse_own_metrics(model: keras.Model, forward: pure.Forward) -> None:
    for metric in touched(model, forward):
        if not type(metric).__module__.startswith("keras."):
            raise KerasdistError(
                f"The metric {metric.name!r} has the custom class {type(metric).__name__!r} and is "
                "updated while the model runs, where it sees only a shard of the batch. Expected "
                "one of Keras's own classes there, for example `keras.metrics.Mean`. Use one, or "
                "pass the metric to `compile(metrics=[...])`."
            )


def _labels(model: keras.Model, outputs: Any) -> Iterator[Labels]:
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


def _unknown_name(reason: str) -> KerasdistError | None:
    """A name in `compile` that Keras does not know. Keras looks when it sees the first batch."""
    found = re.fullmatch(r"Could not interpret (\w+)(?: \w+)*: '?(\w+)'?.*", reason, re.DOTALL)
    if found is None:
        return None
    kind, name = found.groups()
    modules = {"loss": "losses", "metric": "metrics"}
    if kind not in modules:
        return None
    known = ["accuracy", *(n for n in dir(getattr(keras, modules[kind])) if n.islower())]
    return KerasdistError(
        f"The model was compiled with the {kind} {name!r}, which Keras does not know. Expected a "
        f"name of `keras.{modules[kind]}`, or a function.{closest(name, known)} Correct it in "
        "`model.compile`."
    )


def _unreadable(model: keras.Model, what: str, spec: Batch, error: Exception) -> KerasdistError:
    fields = fields_read(model, spec)
    shapes = ", ".join(f"{path}: {described(leaf)}" for path, leaf in fields)
    reason = (keras_reason(error) or type(error).__name__).rstrip(".")
    if (unknown := _unknown_name(reason)) is not None:
        return unknown
    text = next((path for path, leaf in fields if leaf.dtype == tf.string), None)
    if text is not None:
        targets = tf.nest.flatten(read(model, spec, need_targets=False).y)
        is_target = any(leaf is y for path, leaf in fields if path == text for y in targets)
        fix = (
            "`classes, y = np.unique(labels, return_inverse=True)` turns labels into numbers; "
            "in a dataset, use `keras.layers.StringLookup` in a `map`."
            if is_target
            else "Begin the model with a layer that turns the strings into numbers, "
            "`keras.layers.StringLookup` or `TextVectorization`, or use it in a `map` of the data."
        )
        return KerasdistError(
            f"Received strings as the {'target' if is_target else 'feature'} {text!r}, which the "
            f"model {type(model).__name__!r} or its loss cannot read: {reason}. Expected numbers. "
            f"{fix}"
        )
    of_input, of_loss = input_hint(model, spec), loss_hint(model, spec)
    expected = "targets as the loss takes them" if of_loss else "what its layers and the loss take"
    expected = "the shape of the model's input" if of_input else expected
    return KerasdistError(
        f"Received {what} ({shapes}) that the model {type(model).__name__!r} or its loss cannot "
        f"read: {reason}. Expected {expected}.{of_input}{of_loss} Change the data or the model; "
        "the traceback above this one shows where it failed."
    )
