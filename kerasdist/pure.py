"""A Keras model, its loss, metrics and optimizer as pure functions of their state.

The only module that uses private Keras names; `tests/test_pure.py` has a test for each, which fails
when Keras changes it. Seen with Keras 3.15.1 on TensorFlow 2.21.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend as keras_backend
from keras.src.backend.common import global_state
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.losses import loss as keras_loss
from keras.src.optimizers.base_optimizer import BaseOptimizer
from keras.src.random.seed_generator import GLOBAL_SEED_GENERATOR, global_seed_generator

from kerasdist.models import Example

Tensors = Sequence[tf.Tensor]

# Optimizers whose own `apply` computes something else than their formula, and what to use instead.
REFUSED_OPTIMIZERS = {
    "ScheduleFreeAdamW": (
        "in Keras 3.15 with TensorFlow it reads its momentum after having updated it, where its "
        "formula has the value before",
        "adamw",
    ),
}


@dataclass
class Shard:
    """What the loss and the metrics need to know while one shard of a batch is traced.

    `num_examples` counts the shard's own examples (0 for an empty shard, which runs on a borrowed
    one), `weight` is their share of the global batch. `global_denominators` are the denominators of
    losses that do not divide by the number of examples, over the whole global batch; None while
    they are being collected into `local_denominators`.
    """

    num_examples: tf.Tensor
    num_global: tf.Tensor
    global_denominators: Tensors | None = None
    local_denominators: list[tf.Tensor] = field(default_factory=list)
    weighted_by_examples: frozenset[int] = frozenset()

    @property
    def weight(self) -> tf.Tensor:
        return tf.cast(self.num_examples, "float64") / tf.cast(self.num_global, "float64")

    def share(self, denominator: tf.Tensor) -> tf.Tensor:
        """The factor that turns this shard's loss into its part of the global loss, / `weight`.

        The step multiplies a shard's whole loss by `weight`. A loss with another denominator than
        the number of examples must count `local / global` of that denominator instead.
        """
        index = len(self.local_denominators)
        self.local_denominators.append(denominator)
        if self.global_denominators is None:
            return tf.ones((), denominator.dtype)
        whole = tf.cast(self.global_denominators[index], denominator.dtype)
        return tf.math.divide_no_nan(denominator, whole) * self.inverse_weight(denominator.dtype)

    def inverse_weight(self, dtype) -> tf.Tensor:
        own = tf.cast(tf.maximum(self.num_examples, 1), "float64")
        return tf.cast(tf.cast(self.num_global, "float64") / own, dtype)


# Replicas are traced in threads of their own.
_active = threading.local()


def _current_shard() -> Shard | None:
    return getattr(_active, "shard", None)


@contextlib.contextmanager
def _tracing(shard: Shard | None) -> Iterator[None]:
    before = _current_shard()
    _active.shard = shard
    try:
        yield
    finally:
        _active.shard = before


_keras_reduce = keras_loss.reduce_weighted_values
_keras_mean_update = keras.metrics.Mean.update_state


def _reduce_weighted_values(
    values, sample_weight=None, mask=None, reduction="sum_over_batch_size", dtype=None
):
    """Keras's reduction, corrected so that `weight` times it adds up over shards to the whole."""
    value = _keras_reduce(values, sample_weight, mask, reduction, dtype)
    shard = _current_shard()
    values_rank = len(keras.ops.convert_to_tensor(values).shape)
    if shard is None or reduction in (None, "none") or values_rank == 0:
        return value
    if reduction == "sum":
        return value * shard.inverse_weight(value.dtype)
    if reduction == "mean_with_sample_weight" and (sample_weight is not None or mask is not None):
        weights = keras_loss.apply_mask(
            None if sample_weight is None else keras.ops.cast(sample_weight, value.dtype),
            mask,
            dtype=value.dtype,
            reduction=reduction,
        )
        return value * shard.share(tf.reduce_sum(keras.ops.cast(weights, value.dtype)))
    if mask is not None:
        return value * shard.share(tf.reduce_sum(keras.ops.cast(mask, value.dtype)))
    return value


def _mean_update_state(self, values, sample_weight=None):
    """`Mean.update_state`; a bare scalar counts once a global batch, not once a shard."""
    shard = _current_shard()
    if shard is not None and sample_weight is None:
        if len(keras.ops.convert_to_tensor(values).shape) == 0:
            if id(self) in shard.weighted_by_examples:
                sample_weight = keras.ops.cast(shard.num_examples, self.dtype)
            else:
                sample_weight = keras.ops.cast(shard.weight, self.dtype)
    return _keras_mean_update(self, values, sample_weight)


def _variable_key(self, variable):
    # TFOptimizer's own key asks `variable.value`, which inside a StatelessScope is a tensor.
    native = variable._value if isinstance(variable, keras_backend.Variable) else variable
    return native._unique_id


# TFOptimizer replaces these with versions for tf.distribute, which need real variables.
_FUNCTIONAL = (
    "assign",
    "assign_add",
    "assign_sub",
    "_apply_weight_decay",
    "_backend_update_step",
)
_patch_lock = threading.RLock()
_patch_depth = 0


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """While tracing: Keras's optimizers act functionally, and losses know about shards.

    Outside a shard the replaced functions do what Keras's own do, but for the division of losses by
    the number of replicas, which is off.
    """
    global _patch_depth
    with _patch_lock:
        _patch_depth += 1
        if _patch_depth == 1:
            _apply_patches()
    try:
        yield
    finally:
        with _patch_lock:
            _patch_depth -= 1
            if _patch_depth == 0:
                _undo_patches()


_originals: list[tuple[Any, str, Any]] = []


def _replace(owner: Any, name: str, value: Any) -> None:
    _originals.append((owner, name, vars(owner)[name]))
    setattr(owner, name, value)


def _apply_patches() -> None:
    for name in _FUNCTIONAL:
        _replace(TFOptimizer, name, vars(BaseOptimizer)[name])
    _replace(TFOptimizer, "_var_key", _variable_key)
    _replace(keras_loss, "scale_loss_for_distribution", lambda value: value)
    _replace(keras_loss, "unscale_loss_for_distribution", lambda value: value)
    _replace(keras_loss, "reduce_weighted_values", _reduce_weighted_values)
    _replace(keras.metrics.Mean, "update_state", _mean_update_state)


def _undo_patches() -> None:
    while _originals:
        owner, name, value = _originals.pop()
        setattr(owner, name, value)


def _native(variable: keras.Variable) -> tf.Variable:
    return variable._value


@dataclass(frozen=True)
class Parts:
    """The variables of a compiled, built model by their role in a step."""

    trainable: tuple[keras.Variable, ...]
    other: tuple[keras.Variable, ...]
    optimizer: tuple[keras.Variable, ...]
    metrics: tuple[keras.Variable, ...]
    seeds: tuple[keras.Variable, ...]

    def natives(self, role: str) -> list[tf.Variable]:
        """The TensorFlow variables behind the ones of a role."""
        return [_native(variable) for variable in getattr(self, role)]


def parts(model: keras.Model) -> Parts:
    """Sorts a model's variables. The global seed generator counts as one of the model's."""
    trainable = tuple(model.trainable_variables)
    weights = list(model.weights)
    known = {id(v) for v in weights}
    seeds = [v for v in model.variables if id(v) not in known]
    seeds.append(global_seed_generator().state)
    tracker = model._loss_tracker.variables if model.compiled else ()
    metrics = {id(v): v for v in [*tracker, *model.metrics_variables]}
    of_trainable = {id(v) for v in trainable}
    return Parts(
        trainable=trainable,
        other=tuple(v for v in weights if id(v) not in of_trainable and id(v) not in metrics),
        optimizer=tuple(model.optimizer.variables) if getattr(model, "optimizer", None) else (),
        metrics=tuple(metrics.values()),
        seeds=tuple(seeds),
    )


def call(model: keras.Model, args: tuple, training: bool) -> Any:
    """Calls the model with or without `training`, as its `call` allows."""
    if model._call_has_training_arg:
        return model(*args, training=training)
    return model(*args)


def build(model: keras.Model, example: Example) -> None:
    """Creates the variables of the model, its loss and metrics, without running anything.

    `example` holds a `tf.TensorSpec` for each tensor.
    """
    loss, metrics = (model._compile_loss, model._compile_metrics) if example.y is not None else (None, None)
    need_loss = loss is not None and not loss.built
    need_metrics = metrics is not None and not metrics.built
    if not (need_loss or need_metrics) and all(layer.built for layer in model._flatten_layers()):
        return
    example = Example(*(_symbolic(part) for part in vars(example).values()))
    outputs = keras_backend.compute_output_spec(lambda *a: call(model, a, False), *example.args)
    if need_metrics:
        keras_backend.compute_output_spec(
            model.compute_metrics, example.x, example.y, outputs, example.sample_weight
        )
    if need_loss:
        keras_backend.compute_output_spec(loss, example.y, outputs, example.sample_weight)


def _symbolic(structure: Any) -> Any:
    return tf.nest.map_structure(
        lambda spec: (
            None
            if spec is None
            else keras.KerasTensor(spec.shape, keras_backend.standardize_dtype(spec.dtype))
        ),
        structure,
    )


def build_optimizer(model: keras.Model) -> None:
    if not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)


def share_global_seed_generator() -> Any:
    """The caller's global seed generator, to be set in replicas' threads (it is thread-local)."""
    return global_seed_generator()


def use_global_seed_generator(generator: Any) -> None:
    global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, generator)


@dataclass(frozen=True)
class Forward:
    """The result of a forward pass over one shard: values, and what the pass changed."""

    outputs: Any
    loss: tf.Tensor | None
    changed: dict[int, tf.Tensor]
    metrics: tuple[tf.Tensor, ...]
    updated_metrics: frozenset[int]
    used_add_loss: bool


def forward(
    model: keras.Model,
    roles: Parts,
    state: tuple[Tensors, Tensors, Tensors],
    example: Example,
    *,
    shard: Shard,
    training: bool,
    with_metrics: bool,
) -> Forward:
    """Runs model, loss and metrics over a shard. Metrics start from zero: they are deltas.

    `state` holds values of the trainable variables, the other ones and the seed generators.
    """
    zeros = [tf.zeros(v.shape, v.dtype) for v in roles.metrics]
    mapping = [*_mapping(roles, state), *zip(roles.metrics, zeros, strict=True)]
    weighted = frozenset(id(m) for m in model._compile_loss.metrics) if model._compile_loss else ()
    shard.weighted_by_examples = frozenset(weighted)
    with keras.StatelessScope(mapping, collect_losses=True) as scope, _tracing(shard):
        given = {id(v): scope.get_current_value(v) for v, _ in mapping}
        # Stale ids of an earlier trace's losses could match new tensors.
        model._clear_losses()
        outputs = call(model, example.args, training)
        used_add_loss = bool(scope.losses)
        loss = None
        if model._compile_loss is not None or used_add_loss or overrides(model, "compute_loss"):
            loss = model._compute_loss(
                x=example.x,
                y=example.y,
                y_pred=outputs,
                sample_weight=example.sample_weight,
                training=training,
            )
            count = tf.cast(shard.num_examples, model._loss_tracker.dtype)
            model._loss_tracker.update_state(loss, sample_weight=count)
        updated = [v for v in roles.metrics if scope.get_current_value(v) is not given[id(v)]]
        if with_metrics:
            model.compute_metrics(example.x, example.y, outputs, example.sample_weight)
        model._clear_losses()
    changed = {}
    for variable in (*roles.trainable, *roles.other):
        value = scope.get_current_value(variable)
        if value is not given[id(variable)]:
            changed[id(variable)] = value
    return Forward(
        outputs=outputs,
        loss=loss,
        changed=changed,
        metrics=tuple(scope.get_current_value(v) for v in roles.metrics),
        updated_metrics=frozenset(id(v) for v in updated),
        used_add_loss=used_add_loss,
    )


def _mapping(roles: Parts, state: tuple[Tensors, Tensors, Tensors]) -> list:
    trainable, other, seeds = state
    return [
        *zip(roles.trainable, trainable, strict=True),
        *zip(roles.other, other, strict=True),
        *zip(roles.seeds, seeds, strict=True),
    ]


def predict(
    model: keras.Model, roles: Parts, state: tuple[Tensors, Tensors, Tensors], example: Example
) -> Any:
    """The model's outputs alone."""
    with keras.StatelessScope(_mapping(roles, state)):
        return call(model, example.args, training=False)


def update_metrics(
    model: keras.Model, roles: Parts, values: Tensors, example: Example, outputs: Any
) -> list[tf.Tensor]:
    """`compute_metrics` on a whole global batch, for metrics that do not add up over shards."""
    mapping = list(zip(roles.metrics, values, strict=True))
    with keras.StatelessScope(mapping) as scope:
        model.compute_metrics(example.x, example.y, outputs, example.sample_weight)
    return [scope.get_current_value(v) for v in roles.metrics]


def get_mask(tensor: Any) -> tf.Tensor | None:
    return keras_backend.get_keras_mask(tensor)


def set_mask(tensor: Any, mask: tf.Tensor) -> None:
    keras_backend.set_keras_mask(tensor, mask)


def overrides(model: keras.Model, method: str) -> bool:
    """Whether the model's class replaces a method of `keras.Model`."""
    return getattr(type(model), method) is not getattr(keras.Model, method)


def adds_up(metric: keras.metrics.Metric) -> bool:
    """Whether a compiled metric's state over a batch is the sum of its states over the shards.

    Keras's own metrics are sums; a function of the caller's may return a mean of its batch, and a
    class of the caller's may do anything.
    """
    if not type(metric).__module__.startswith("keras."):
        return False
    if isinstance(metric, keras.metrics.MeanMetricWrapper):
        module = getattr(metric._fn, "__module__", "") or ""
        return module.startswith("keras.")
    return True


def loss_so_far(model: keras.Model) -> Any:
    """The mean loss over the examples since the metrics were reset."""
    return model._loss_tracker.result()


def compiled_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    return list(model._compile_metrics.metrics) if model._compile_metrics is not None else []


def tracked_metrics(model: keras.Model) -> list[keras.metrics.Metric]:
    """Metrics that the model keeps itself, which its `call` or `compute_loss` may update."""
    own = {id(m) for m in compiled_metrics(model)}
    own.add(id(model._compile_metrics))
    own.add(id(model._loss_tracker))
    if model._compile_loss is not None:
        own |= {id(m) for m in model._compile_loss.metrics}
    return [m for m in model.metrics if id(m) not in own]


def sparse_label_outputs(model: keras.Model) -> list[tuple[tuple, int | None]]:
    """`(path into the targets, ignored class)` of each loss that takes class numbers."""
    if model._compile_loss is None or not model._compile_loss.built:
        return []
    found = []
    for path, loss, _, _ in model._compile_loss._flat_losses:
        function = getattr(loss, "fn", None)
        if function is keras.losses.sparse_categorical_crossentropy:
            found.append((tuple(path), getattr(loss, "ignore_class", None)))
    return found


def loss_scale(optimizer: keras.optimizers.Optimizer):
    """`(inner optimizer, scale variable, growth counter)`; the last two None without a scale."""
    if isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        # Its own variables exist once it is built.
        scale, counter = (
            (optimizer.dynamic_scale, optimizer.step_counter) if optimizer.built else (None, None)
        )
        return optimizer.inner_optimizer, scale, counter
    return optimizer, None, None


def apply_gradients(
    optimizer: keras.optimizers.Optimizer,
    roles: Parts,
    gradients: Sequence[tf.Tensor | None],
    trainable: Tensors,
    values: Tensors,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """One update as a pure function: `(new trainable values, new optimizer values)`."""
    mapping = [
        *zip(roles.trainable, trainable, strict=True),
        *zip(roles.optimizer, values, strict=True),
    ]
    factor, optimizer.loss_scale_factor = optimizer.loss_scale_factor, None  # done by the engine
    try:
        with keras.StatelessScope(mapping) as scope:
            optimizer.apply(list(gradients), list(roles.trainable))
    finally:
        optimizer.loss_scale_factor = factor
    return (
        [scope.get_current_value(v) for v in roles.trainable],
        [scope.get_current_value(v) for v in roles.optimizer],
    )


def wants_batches(callback: keras.callbacks.Callback, kind: str) -> bool:
    """Whether a callback looks at every batch of `kind` ("train" or "test")."""
    if isinstance(callback, keras.callbacks.ModelCheckpoint) and callback.save_freq == "epoch":
        return False
    names = [f"on_{kind}_batch_begin", f"on_{kind}_batch_end"]
    if kind == "train":
        names += ["on_batch_begin", "on_batch_end"]
    return any(not getattr(getattr(callback, n), "_is_default", False) for n in names)


def all_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """The model and every layer inside it."""
    return list(model._flatten_layers())


def has_own_loss(model: keras.Model) -> bool:
    """Whether the loss is anything but Keras's own losses."""
    if overrides(model, "compute_loss"):
        return True
    losses = model._compile_loss._flat_losses or () if model._compile_loss is not None else ()
    for _, loss, _, _ in losses:
        function = getattr(loss, "fn", None)
        module = type(loss).__module__ if function is None else function.__module__
        if not (module or "").startswith("keras."):
            return True
    return False
