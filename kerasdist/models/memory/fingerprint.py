"""Tells whether anything that a compiled function of a model depends on has changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any

import keras
import tensorflow as tf

from kerasdist.devices import private_tensorflow
from kerasdist.models import pure

# What `fit` and `evaluate` set at every call, and what a forward pass or an update leaves behind.
_SET_BY_CALLS = {
    "history",
    "stop_training",
    "stop_evaluating",
    "stop_predicting",
    "train_function",
    "test_function",
    "predict_function",
    "_losses",
    "_loss_ids",
    "_called",
    "_exclude_from_weight_decay_cache",
}
# Ours, and TensorFlow's lists of the other attributes.
_NO_SETTINGS = ("kerasdist_", "_self_")
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_EXACT = frozenset(_PLAIN)
# Longer or deeper structures are compared as objects: they are data, not settings.
_MOST_ITEMS, _MOST_LEVELS = 64, 3


class Same:
    """Equal to another one for the same object only.

    It keeps the object alive. Its id alone might come back with another object.
    """

    __slots__ = ("thing",)

    def __init__(self, thing: Any):
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and other.thing is self.thing

    def __hash__(self) -> int:
        return id(self.thing)

    def __repr__(self) -> str:
        return f"Same({type(self.thing).__name__})"


def fingerprint(model: keras.Model) -> tuple[Any, ...]:
    """A value that changes when a compiled function of the model must be made again.

    It has the variables and whether they are trained; the settings of the model, its layers,
    losses, metrics and optimizers; and Keras's global settings. It does not have the values of
    variables.

    Example:
        >>> import keras
        >>> model = keras.Sequential([keras.Input((2,)), keras.layers.Dropout(0.5)])
        >>> before = fingerprint(model)
        >>> fingerprint(model) == before
        True
        >>> model.layers[0].rate = 0.25
        >>> fingerprint(model) == before
        False
    """
    roles, optimizers = pure.parts(model), _optimizers(model)
    variables = [roles.trainable, roles.other, roles.metrics, roles.seeds]
    variables += [tuple(optimizer.variables) for optimizer in optimizers]
    return (
        Same(model),
        tuple(tuple(map(Same, group)) for group in variables),
        tuple((_value(v.regularizer, 1), _value(v.constraint, 1)) for v in roles.trainable),
        tuple((Same(thing), *_settings(thing)) for thing in [*_things(model), *optimizers]),
        keras.config.floatx(),
        keras.config.dtype_policy().name,
        keras.config.image_data_format(),
        keras.config.is_flash_attention_enabled(),
        tf.config.experimental.tensor_float_32_execution_enabled(),
        private_tensorflow.is_op_determinism_enabled(),
    )


def _things(model: keras.Model) -> list[Any]:
    """The objects whose settings decide: the model and its layers, losses and metrics."""
    layers = [model, *pure.all_layers(model)]
    loss, _ = pure.compilation(model)
    own = [] if loss is None else [loss, *tf.nest.flatten(getattr(model, "loss", None))]
    metrics = [] if loss is None else pure.compiled_metrics(model)
    found = {id(thing): thing for thing in [*layers, *own, *metrics]}
    return [thing for thing in found.values() if thing is not None]


def _optimizers(model: keras.Model) -> list[keras.optimizers.Optimizer]:
    """All optimizers of the model, and those inside a `LossScaleOptimizer`."""
    outer = [o for o in (pure.compilation(model)[1], *pure.optimizers_of(model)) if o is not None]
    found = {id(o): o for one in outer for o in (one, pure.loss_scale(one)[0])}
    return list(found.values())


def _settings(thing: Any) -> tuple[Any, ...]:
    values = getattr(thing, "__dict__", {})
    pairs = [
        (name, _value(value, 1))
        for name, value in values.items()
        if name not in _SET_BY_CALLS and not name.startswith(_NO_SETTINGS)
    ]
    return (Same(getattr(type(thing), "call", None)), *pairs)


def _value(value: Any, level: int) -> Any:
    # Most values have exactly one of these types, and the other questions take longer.
    if type(value) in _EXACT or isinstance(value, _PLAIN):
        return "nan" if value != value else (type(value), value)
    if level > _MOST_LEVELS:
        return Same(value)
    if isinstance(value, Mapping) and len(value) <= _MOST_ITEMS:
        return tuple((_value(k, level + 1), _value(v, level + 1)) for k, v in value.items())
    is_several = isinstance(value, (Sequence, Set)) and not isinstance(value, (str, bytes))
    if is_several and len(value) <= _MOST_ITEMS:
        return tuple(_value(item, level + 1) for item in value)
    if _is_setting(value):
        return Same(value), tuple((k, _value(v, level + 1)) for k, v in vars(value).items())
    return Same(value)


def _is_setting(value: Any) -> bool:
    """Keras's small objects with numbers in them: regularizers, schedules, initializers."""
    kinds = (
        keras.regularizers.Regularizer,
        keras.constraints.Constraint,
        keras.optimizers.schedules.LearningRateSchedule,
    )
    return isinstance(value, kinds)
