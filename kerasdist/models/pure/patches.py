"""What is replaced in Keras while a step is traced: losses and optimizers that know of shards, and
what is quicker on a CPU."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend as keras_backend
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.losses import loss as keras_loss
from keras.src.optimizers.base_optimizer import BaseOptimizer

from kerasdist.devices import private_tensorflow
from kerasdist.errors import KerasdistError
from kerasdist.models.pure import recurrence

Tensors = Sequence[tf.Tensor]


@dataclass
class Shard:
    """What the loss and the metrics need to know while one shard of a batch is traced.

    `num_examples` counts the shard's own examples (0 for an empty shard, which runs on a borrowed
    one), `weight` is their share of the global batch. `global_denominators` are the denominators of
    losses that do not divide by the number of examples, over the whole global batch; None while
    they are being collected into `local_denominators`. `losses_of_outputs` are metrics of Keras's
    own, which weigh batches by their size if the model `is_eager` (`run_eagerly`). `on_cpu` chooses
    how recurrent layers are computed. With `is_step` denominators must be known, not collected.
    Numbers are integers where they are known while tracing.
    """

    num_examples: tf.Tensor | int
    num_global: tf.Tensor | int
    global_denominators: Tensors | None = None
    local_denominators: list[tf.Tensor] = field(default_factory=list)
    losses_of_outputs: frozenset[int] = frozenset()
    is_eager: bool = False
    on_cpu: bool = False
    is_step: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether this is the whole global batch, which is known before anything is computed."""
        return self.num_examples is self.num_global

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
        known = () if self.global_denominators is None else self.global_denominators
        if self.is_step and not self.is_whole and index >= len(known):
            raise KerasdistError(
                "A loss divides by something else than the number of examples, and did not do so "
                "when the model was inspected. Expected the same loss for every batch. Use "
                "`devices=1, shards=1`, or a mean over examples."
            )
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
def tracing(shard: Shard | None) -> Iterator[None]:
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
    """`Mean.update_state`; a bare scalar counts once a global batch, not once a shard.

    So do the losses of several outputs. Keras weighs them with the batch's size as far as the graph
    knows it, and a graph that reads batches of several sizes does not (3.15.1).
    """
    shard = _current_shard()
    if shard is not None and id(self) in shard.losses_of_outputs:
        sample_weight = shard.num_examples if shard.is_eager else shard.weight
        sample_weight = keras.ops.cast(sample_weight, self.dtype)
    elif shard is not None and sample_weight is None and _is_scalar(values):
        sample_weight = keras.ops.cast(shard.weight, self.dtype)
    return _keras_mean_update(self, values, sample_weight)


def _is_scalar(values) -> bool:
    return len(keras.ops.convert_to_tensor(values).shape) == 0


def _inner_loop(keras_loop):
    def inner_loop(self, sequences, initial_state, mask, training=False):
        shard = _current_shard()
        if shard is not None and shard.on_cpu and recurrence.is_quick(self):
            return recurrence.loop(self, sequences, initial_state, mask)
        return keras_loop(self, sequences, initial_state, mask, training)

    return inner_loop


def _variable_key(self, variable):
    # TFOptimizer's own key asks `variable.value`, which inside a StatelessScope is a tensor.
    native = variable._value if isinstance(variable, keras_backend.Variable) else variable
    return private_tensorflow.id_of(native)


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
    for layer in (keras.layers.GRU, keras.layers.LSTM):
        _replace(layer, "inner_loop", _inner_loop(layer.inner_loop))


def _undo_patches() -> None:
    while _originals:
        owner, name, value = _originals.pop()
        setattr(owner, name, value)
