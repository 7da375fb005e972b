"""Runs a model's own `train_step`, `test_step` or `predict_step` as a function of its state."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.optimizers.loss_scale_optimizer import LossScaleOptimizer
from keras.src.trainers import compile_utils

from kerasdist.errors import KerasdistError
from kerasdist.models.pure.added_losses import LossScope
from kerasdist.models.pure.introspection import overrides
from kerasdist.models.pure.members import metrics_of, optimizers_of
from kerasdist.models.pure.replacements import Replace, Replacements
from kerasdist.models.pure.shard import Shard, tracing
from kerasdist.models.pure.steps import tf_random
from kerasdist.models.pure.steps.tapes import Meet, Recording
from kerasdist.models.pure.variables import Parts, build_outside, is_seed, parts, step_counter

# Values of variables, by the id of the variable.
Values = Mapping[int, tf.Tensor]
Build = Callable[[BaseOptimizer, Sequence[keras.Variable]], None]
Clip = Callable[[Sequence[tf.Tensor | None]], Sequence[tf.Tensor | None]]

_active = threading.local()


@dataclass(frozen=True)
class Call:
    """How a step is called, besides its state and its data.

    Attributes:
        method: "train_step", "test_step" or "predict_step".
        shard: The part of the batch that the data is.
        draw_seed: Two whole numbers for `tf.random`.
        meet: Called with the gradients for weights; returns those of the whole batch.
        clip: Called with the gradients that an optimizer gets.
        one_row: For which shapes `tf.random` draws one row and repeats it.
        builds: Whether an optimizer without variables gets them. Else it is a NotBuiltError.
    """

    method: str
    shard: Shard
    draw_seed: tf.Tensor
    meet: Meet = lambda gradients, names: gradients
    clip: Clip = lambda gradients: gradients
    one_row: Callable[[Any], bool] | None = None
    builds: bool = False


@dataclass(frozen=True)
class Stepped:
    """What a step returned, and the new values of the variables that it changed.

    `results` names the metric behind each leaf of `returned` that is a metric's result, by the
    number of the leaf. `outside` holds variables that the step assigned and that had no value.
    """

    returned: Any
    changed: dict[int, tf.Tensor]
    results: dict[int, tuple[keras.metrics.Metric, int]]
    outside: tuple[keras.Variable, ...]
    has_shuffled: bool


class _StepScope(LossScope):
    """A scope for a step, which reads variables after it changed them."""

    def __init__(self, values: list[tuple[keras.Variable, tf.Tensor]]):
        super().__init__(values, initialize_variables=False)
        self._known = {id(variable): variable for variable, _ in values}
        self._given = {id(v): self.state_mapping[id(v)] for v, _ in values}
        self._graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        self.recording: Recording | None = None
        self.outside: dict[int, keras.Variable] = {}

    def add_update(self, update: tuple[keras.Variable, Any]) -> None:
        variable, value = update
        self._refuse_branch(variable)
        if id(variable) not in self._known:
            self.outside[id(variable)] = variable
        # As with real variables, a gradient is taken for the value that was assigned.
        super().add_update((variable, tf.stop_gradient(value)))
        if self.recording is not None:
            self.recording.assigned(variable)

    def build(self, optimizer: BaseOptimizer, variables: Sequence[keras.Variable]) -> None:
        """Creates the variables of an optimizer, which have zeros for values here."""
        build_outside(optimizer, variables)
        for variable in optimizer.variables:
            value = tf.zeros(variable.shape, variable.dtype)
            self._known[id(variable)] = variable
            self._given[id(variable)] = self.state_mapping[id(variable)] = value

    def _refuse_branch(self, variable: keras.Variable) -> None:
        graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
        if graph is not self._graph:
            raise KerasdistError(
                f"The step assigns {variable.path!r} inside of `tf.cond`, `tf.while_loop` or a "
                "`tf.function`. Expected the assignment, and `optimizer.apply`, in the step "
                "itself: otherwise kerasdist cannot see the new value. Compute the value in the "
                "branch, for example with `tf.where`, and assign it outside."
            )

    def changed(self) -> dict[int, tf.Tensor]:
        """New values by variable id, without those of seed generators."""
        return {
            key: _of_shape(self.state_mapping[key], variable)
            for key, variable in self._known.items()
            if self.state_mapping[key] is not self._given[key] and not is_seed(variable)
        }


def _of_shape(value: Any, variable: keras.Variable) -> tf.Tensor:
    value = tf.convert_to_tensor(value)
    return value if value.shape == variable.shape else tf.ensure_shape(value, variable.shape)


def run_step(
    model: keras.Model,
    values: list[tuple[keras.Variable, tf.Tensor]],
    data: Any,
    call: Call,
    metrics: Sequence[keras.metrics.Metric] = (),
) -> Stepped:
    """Calls a step of a model with `values` for its variables, and writes nothing."""
    step = python_step(model, call.method)
    scope = _StepScope(values)
    variables = [variable for variable, _ in values]
    recording = Recording(scope.get_current_value, variables, call.meet)
    with (
        scope,
        tracing(call.shard),
        tf_random.drawing(call.draw_seed, call.one_row) as drawn,
        recording,
        _clipping(call.clip, scope.build if call.builds else None),
        _noted_results(metrics) as results,
    ):
        scope.recording = recording
        returned = step(data)
    leaves = tf.nest.flatten(returned)
    found = {i: results[id(leaf)] for i, leaf in enumerate(leaves) if id(leaf) in results}
    outside = tuple(v for v in scope.outside.values())
    return Stepped(returned, scope.changed(), found, outside, drawn.has_shuffled)


def python_step(model: keras.Model, method: str) -> Callable[[Any], Any]:
    """The step as a Python function, also if its author put it into a `tf.function`."""
    step = getattr(model, method)
    found: Callable[[Any], Any] = getattr(step, "python_function", step)
    return found


@contextlib.contextmanager
def _noted_results(
    metrics: Sequence[keras.metrics.Metric],
) -> Iterator[dict[int, tuple[keras.metrics.Metric, int]]]:
    """Collects the tensors that `metric.result()` returns: `(metric, number of its leaf)` by id."""
    found: dict[int, tuple[keras.metrics.Metric, int]] = {}
    kept: list[Any] = []

    def noting(metric: keras.metrics.Metric, result: Callable[[], Any]) -> Callable[[], Any]:
        def noted() -> Any:
            value = result()
            for i, leaf in enumerate(tf.nest.flatten(value)):
                found[id(leaf)] = (metric, i)
                kept.append(leaf)  # Its id must not be given to another tensor.
            return value

        return noted

    for metric in metrics:
        vars(metric)["result"] = noting(metric, type(metric).result.__get__(metric))
    try:
        yield found
    finally:
        for metric in metrics:
            vars(metric).pop("result", None)


def own_parts(model: keras.Model) -> Parts:
    """As `parts`, for a model with its own step: with all its optimizers and metrics."""
    step_counter(model)
    found = parts(model)
    optimizers = {id(v): v for o in optimizers_of(model) for v in o.variables}
    metrics = {id(v): v for m in metrics_of(model) for v in m.variables}
    known = {id(v) for v in found.trainable} | set(optimizers) | set(metrics)
    return dataclasses.replace(
        found,
        other=tuple(v for v in found.other if id(v) not in known),
        optimizer=tuple(optimizers.values()),
        metrics=tuple(metrics.values()),
    )


def build_step(model: keras.Model, method: str, spec: Any) -> None:
    """Traces a step as Keras does, which creates all variables of layers and optimizers."""
    step = python_step(model, method)
    tf.function(lambda data: step(data), autograph=False).get_concrete_function(spec)


def is_built(model: keras.Model) -> bool:
    """Whether all layers, the loss and the metrics have their variables.

    A model without `call`, such as a usual GAN, is never built itself. It often calls a function
    as its loss, and then Keras never builds the loss and the metrics of `compile`.
    """
    parts = [layer for layer in model._flatten_layers() if layer is not model]
    if overrides(model, "call"):
        compiled = [m for m in (model._compile_loss, model._compile_metrics) if m is not None]
        parts = [model, *parts, *compiled]
    return all(each.built for each in parts)


class NotBuiltError(Exception):
    """A step uses an optimizer, or the loss or metrics of `compile`, without variables yet."""


@contextlib.contextmanager
def _clipping(clip: Clip, build: Build | None) -> Iterator[None]:
    before = getattr(_active, "clip", None), getattr(_active, "build", None)
    _active.clip, _active.build = clip, build
    try:
        with _REPLACED.active():
            yield
    finally:
        _active.clip, _active.build = before


def _ensure_built(optimizer: BaseOptimizer, variables: Any) -> None:
    if optimizer.built:
        return
    if _active.build is None or variables is None:
        raise NotBuiltError(optimizer.name)
    _active.build(optimizer, list(variables))


def _new_apply(original: Callable[..., None]) -> Callable[..., None]:
    """`Optimizer.apply`, which clips the gradients that it gets first."""

    def apply(self: BaseOptimizer, grads: Any, trainable_variables: Any = None) -> None:
        clip = getattr(_active, "clip", None)
        if clip is not None:
            _ensure_built(self, trainable_variables)
            grads = list(clip(list(grads)))
        original(self, grads, trainable_variables)

    return apply


def _new_scaled_apply(original: Callable[..., None]) -> Callable[..., None]:
    """`LossScaleOptimizer.apply` without branches: a step that is not finite is not written."""

    def apply(self: LossScaleOptimizer, grads: Any, trainable_variables: Any = None) -> None:
        if getattr(_active, "clip", None) is None:
            original(self, grads, trainable_variables)
            return
        _ensure_built(self, trainable_variables)
        scale = keras.ops.convert_to_tensor(self.dynamic_scale)
        plain = [None if g is None else g / tf.cast(scale, g.dtype) for g in grads]
        self.inner_optimizer.apply(plain, trainable_variables)
        count = keras.ops.convert_to_tensor(self.step_counter) + 1
        grow = tf.equal(count, self.dynamic_growth_steps)
        self.step_counter.assign(tf.where(grow, tf.zeros_like(count), count))
        self.dynamic_scale.assign(tf.where(grow, scale * 2, scale))

    return apply


def _new_build(original: Callable[..., None]) -> Callable[..., None]:
    """`build` of the loss or the metrics of `compile`, which cannot create variables in a step."""

    def build(self: Any, *given: Any) -> None:
        if getattr(_active, "clip", None) is not None:
            raise NotBuiltError(type(self).__name__)
        original(self, *given)

    return build


def _apply(replace: Replace) -> None:
    for compiled in (compile_utils.CompileLoss, compile_utils.CompileMetrics):
        replace(compiled, "build", _new_build(vars(compiled)["build"]))
    replace(BaseOptimizer, "apply", _new_apply(BaseOptimizer.apply))
    replace(LossScaleOptimizer, "apply", _new_scaled_apply(LossScaleOptimizer.apply))


_REPLACED = Replacements(_apply)
