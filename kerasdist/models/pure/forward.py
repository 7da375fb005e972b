"""The model, its loss, metrics and optimizer as functions of their state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.models.fields import Example
from kerasdist.models.pure.added_losses import LossScope
from kerasdist.models.pure.introspection import overrides
from kerasdist.models.pure.shard import Shard, Tensors, tracing
from kerasdist.models.pure.variables import Parts, is_seed

# Values of the trainable variables, the other variables and the seed generators.
State = tuple[Tensors, Tensors, Tensors]
# Variables with the values they have inside a StatelessScope.
_Mapping = list[tuple[keras.Variable, tf.Tensor]]
Watch = Callable[[tf.Tensor], None]


class _Scope(LossScope):
    """A StatelessScope in which a trainable variable that `call` assigns becomes a new leaf.

    As with real variables, the gradient is taken with respect to the assigned value, and none flows
    through a variable to what was assigned.
    """

    def __init__(self, mapping: _Mapping, leaves: set[int], watch: Watch | None):
        super().__init__(mapping)
        self._leaves = leaves
        self._watch = watch
        self._known = {id(variable) for variable, _ in mapping}
        self.outside: dict[int, keras.Variable] = {}
        # What a variable that was assigned is read as; None before that is known.
        self._assigned: dict[int, tf.Tensor | None] = {}

    def get_current_value(self, variable: keras.Variable) -> Any:
        value = super().get_current_value(variable)
        if id(variable) not in self._assigned:
            return value
        if self._assigned[id(variable)] is None:
            self._assigned[id(variable)] = tf.stop_gradient(value)
        return self._assigned[id(variable)]

    def add_update(self, update: tuple[keras.Variable, tf.Tensor]) -> None:
        variable, value = update
        is_number = value.dtype.is_floating or value.dtype.is_complex
        if id(variable) not in self._known:
            self.outside[id(variable)] = variable
        if id(variable) in self._leaves:
            value = tf.stop_gradient(value)
            if self._watch is not None:
                self._watch(value)
        super().add_update((variable, value))
        if id(variable) not in self._leaves and is_number:
            self._assigned[id(variable)] = None


@dataclass(frozen=True)
class Forward:
    """The result of a forward pass over one shard: values, and what the pass changed.

    `outside` holds variables that the pass assigned and that are not in `Parts`. Their new values
    are lost.
    """

    outputs: Any
    loss: tf.Tensor | None
    changed: dict[int, tf.Tensor]
    metrics: tuple[tf.Tensor, ...]
    updated_metrics: frozenset[int]
    added: tuple[tf.Tensor, ...]
    outside: tuple[keras.Variable, ...]
    # The layer that added each loss, and how many denominators the losses in `call` have.
    owners: tuple[keras.layers.Layer | None, ...] = ()
    num_call_denominators: int = 0
    # The states of the seed generators that were drawn from.
    drawn: tuple[keras.Variable, ...] = ()

    @property
    def used_add_loss(self) -> bool:
        return bool(self.added)


def forward(
    model: keras.Model,
    roles: Parts,
    state: State,
    example: Example,
    *,
    shard: Shard,
    training: bool,
    with_metrics: bool,
    with_loss: bool = True,
    watch: Watch | None = None,
    change_outputs: Callable[[Any], Any] | None = None,
) -> Forward:
    """Runs model, loss and metrics over a shard. Metrics start from zero: the results are deltas.

    `watch` is called with each value that the pass assigns to a trainable variable. The loss and
    the metrics get what `change_outputs` returns for the model's outputs.
    """
    zeros = [tf.zeros(v.shape, v.dtype) for v in roles.metrics]
    mapping = [*_mapping(roles, state), *zip(roles.metrics, zeros, strict=True)]
    _note_losses(model, shard)
    leaves = {id(v) for v in roles.trainable}
    with _Scope(mapping, leaves, watch) as scope, tracing(shard):
        given = {id(v): scope.state_mapping[id(v)] for v, _ in mapping}
        outputs = call(model, example.args, training)
        if change_outputs is not None:
            outputs = change_outputs(outputs)
        added = tuple(scope.losses)
        known = {id(layer) for layer in model._flatten_layers()} if added else set()
        owners = tuple(owner if id(owner) in known else None for owner, _ in scope.added)
        num_call_denominators = len(shard.local_denominators)
        loss = None
        has_loss = model._compile_loss is not None or added or overrides(model, "compute_loss")
        if with_loss and has_loss:
            loss = _tracked_loss(model, example, outputs, shard, training)
        updated = [v for v in roles.metrics if scope.state_mapping[id(v)] is not given[id(v)]]
        if with_metrics:
            model.compute_metrics(example.x, example.y, outputs, example.sample_weight)
    return Forward(
        outputs=outputs,
        loss=loss,
        changed=_changed(roles, scope, given),
        metrics=tuple(scope.state_mapping[id(v)] for v in roles.metrics),
        updated_metrics=frozenset(id(v) for v in updated),
        added=added,
        outside=tuple(scope.outside.values()),
        owners=owners,
        num_call_denominators=num_call_denominators,
        drawn=_drawn(roles, scope, given),
    )


def loss_of_outputs(
    model: keras.Model,
    roles: Parts,
    state: State,
    example: Example,
    outputs: Any,
    added: Sequence[tuple[keras.layers.Layer | None, tf.Tensor]],
    *,
    shard: Shard,
    training: bool,
    watch: Watch | None = None,
) -> Forward:
    """Runs the loss alone, on the outputs for a whole batch. `added` has the losses by `add_loss`.

    As in `forward`, metrics start from zero.
    """
    zeros = [tf.zeros(v.shape, v.dtype) for v in roles.metrics]
    mapping = [*_mapping(roles, state), *zip(roles.metrics, zeros, strict=True)]
    _note_losses(model, shard)
    leaves = {id(v) for v in roles.trainable}
    with _Scope(mapping, leaves, watch) as scope, tracing(shard):
        given = {id(v): scope.state_mapping[id(v)] for v, _ in mapping}
        for owner, value in added:
            if owner is not None:
                owner.add_loss(value)
        loss = _tracked_loss(model, example, outputs, shard, training)
    return Forward(
        outputs=outputs,
        loss=loss,
        changed=_changed(roles, scope, given),
        metrics=tuple(scope.state_mapping[id(v)] for v in roles.metrics),
        updated_metrics=frozenset(),
        added=(),
        outside=tuple(scope.outside.values()),
    )


def _note_losses(model: keras.Model, shard: Shard) -> None:
    losses = model._compile_loss.metrics if model._compile_loss else ()
    shard.losses_of_outputs = frozenset(id(metric) for metric in losses)
    shard.is_eager = bool(getattr(model, "run_eagerly", False))


def _tracked_loss(
    model: keras.Model, example: Example, outputs: Any, shard: Shard, training: bool
) -> tf.Tensor:
    loss = model._compute_loss(
        x=example.x,
        y=example.y,
        y_pred=outputs,
        sample_weight=example.sample_weight,
        training=training,
    )
    if tf.convert_to_tensor(loss).shape.rank:
        raise KerasdistError(
            f"The loss of {type(model).__name__!r} is not one number per batch. Expected a loss "
            "with a reduction. Give it `reduction='sum'`, which Keras minimises in such a case, or "
            "leave out `reduction='none'`."
        )
    # The same as `update_state(loss, sample_weight=count)`, with seven operations fewer.
    tracker = model._loss_tracker
    count = tf.cast(shard.num_examples, tracker.dtype)
    tracker.total.assign(tf.cast(loss, tracker.dtype) * count)
    tracker.count.assign(count)
    return loss


def _changed(roles: Parts, scope: _Scope, given: dict[int, tf.Tensor]) -> dict[int, tf.Tensor]:
    """New values by variable id, with the variables' shapes, which a graph may not infer."""
    changed = {}
    for variable in (*roles.trainable, *roles.other):
        value = scope.state_mapping.get(id(variable))
        if value is not given[id(variable)]:
            value = tf.convert_to_tensor(value)
            is_known = value.shape == variable.shape
            changed[id(variable)] = value if is_known else tf.ensure_shape(value, variable.shape)
    return changed


def _drawn(roles: Parts, scope: _Scope, given: dict[int, tf.Tensor]) -> tuple[keras.Variable, ...]:
    return tuple(v for v in roles.seeds if scope.state_mapping[id(v)] is not given[id(v)])


def _mapping(roles: Parts, state: State) -> _Mapping:
    trainable, other, seeds = state
    return [
        *zip(roles.trainable, trainable, strict=True),
        *zip(roles.other, other, strict=True),
        *zip(roles.seeds, seeds, strict=True),
    ]


def predict(model: keras.Model, roles: Parts, state: State, example: Example) -> Forward:
    """Runs the model alone, without loss and metrics."""
    mapping = _mapping(roles, state)
    with _Scope(mapping, set(), None) as scope:
        given = {id(v): scope.state_mapping[id(v)] for v, _ in mapping}
        outputs = call(model, example.args, training=False)
    return Forward(
        outputs=outputs,
        loss=None,
        changed=_changed(roles, scope, given),
        metrics=(),
        updated_metrics=frozenset(),
        added=(),
        outside=tuple(scope.outside.values()),
        drawn=_drawn(roles, scope, given),
    )


def update_metrics(
    model: keras.Model, roles: Parts, values: Tensors, example: Example, outputs: Any
) -> list[tf.Tensor]:
    """Updates the metrics on a whole global batch, if they do not add up over shards."""
    mapping = list(zip(roles.metrics, values, strict=True))
    with _Scope(mapping, set(), None) as scope:
        model.compute_metrics(example.x, example.y, outputs, example.sample_weight)
    lost = [v for v in scope.outside.values() if not is_seed(v)]
    if lost:
        raise KerasdistError(
            f"A metric of {type(model).__name__!r} assigns the variable {lost[0].path!r}, which "
            "does not belong to the metric. Expected variables of the metric only: the new value "
            "of another variable would be lost. Make the variable with `self.add_variable(...)` in "
            "a class derived from `keras.metrics.Metric`."
        )
    return [scope.state_mapping[id(v)] for v in roles.metrics]


def apply_gradients(
    optimizer: keras.optimizers.Optimizer,
    roles: Parts,
    gradients: Sequence[tf.Tensor | None],
    trainable: Tensors,
    values: Tensors,
    *,
    is_inner: bool = False,
) -> tuple[list[tf.Tensor], list[tf.Tensor]]:
    """One update as a pure function. Returns `(new trainable values, new optimizer values)`."""
    mapping = [
        *zip(roles.trainable, trainable, strict=True),
        *zip(roles.optimizer, values, strict=True),
    ]
    with keras.StatelessScope(mapping) as scope:
        run_optimizer(optimizer, roles, gradients, is_inner=is_inner)
    return (
        [scope.get_current_value(v) for v in roles.trainable],
        [scope.get_current_value(v) for v in roles.optimizer],
    )


def run_optimizer(
    optimizer: keras.optimizers.Optimizer,
    roles: Parts,
    gradients: Sequence[tf.Tensor | None],
    *,
    is_inner: bool,
) -> None:
    """One update inside of a scope that stands for the variables.

    Calls `apply_gradients`, as Keras's `train_step` does. With `is_inner` it calls `apply`, as a
    `LossScaleOptimizer` does with its inner optimizer.
    """
    if not roles.trainable:  # Keras's `train_step` does not call the optimizer then.
        return
    factor, optimizer.loss_scale_factor = optimizer.loss_scale_factor, None  # The engine scales.
    try:
        if is_inner:
            optimizer.apply(list(gradients), list(roles.trainable))
        else:
            optimizer.apply_gradients(list(zip(gradients, roles.trainable, strict=True)))
    finally:
        optimizer.loss_scale_factor = factor


def call(model: keras.Model, args: tuple[Any, ...], training: bool) -> Any:
    """Calls the model, with `training` if its `call` takes it."""
    if model._call_has_training_arg:
        return model(*args, training=training)
    return model(*args)
