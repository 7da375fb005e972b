"""Statistics over the whole batch: `BatchNormalization(synchronized=True)` and its like.

Keras adds up the sums of all replicas. Here an uneven batch counts each example once, and a replica
without examples counts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import nn as keras_nn

from kerasdist.errors import KerasdistError
from kerasdist.models.pure.replacements import Replace
from kerasdist.models.pure.shard import Shard, current_shard

_keras_moments = keras.layers.BatchNormalization._moments
_keras_sync = keras_nn._compute_moments_sync


def _total(shard: Shard, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """The sums over all replicas, whose gradients come back from all replicas."""
    add_up = shard.add_up_replicas
    if add_up is None:
        return list(values)
    has_any = tf.convert_to_tensor(shard.num_examples) > 0

    def summed(*own: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., list[tf.Tensor]]]:
        def gradient(*upstream: tf.Tensor) -> list[tf.Tensor]:
            weight = shard.later_weight
            if weight is None:
                return list(add_up(list(upstream)))
            # The caller multiplies the gradients of this shard by its weight later.
            factors = [tf.cast(weight, g.dtype) for g in upstream]
            totals = add_up([g * f for g, f in zip(upstream, factors, strict=True)])
            return [tf.math.divide_no_nan(t, f) for t, f in zip(totals, factors, strict=True)]

        return list(add_up(list(own))), gradient

    counted = [tf.where(has_any, value, tf.zeros_like(value)) for value in values]
    found = tf.custom_gradient(summed)(*counted)
    return list(found) if isinstance(found, (list, tuple)) else [found]


def _moments_of(
    shard: Shard, x: tf.Tensor, mask: tf.Tensor | None, axes: Any
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance over the whole batch, in two passes as Keras computes them."""
    kept = tf.ones_like(x, tf.bool) if mask is None else tf.broadcast_to(mask, tf.shape(x))
    zeros = tf.zeros_like(x)
    own_sum = tf.reduce_sum(tf.where(kept, x, zeros), axis=axes, keepdims=True)
    own_count = tf.reduce_sum(tf.cast(kept, x.dtype), axis=axes, keepdims=True)
    total, count = _total(shard, [own_sum, own_count])
    # Keras's formula for masks adds epsilon, and its gradient goes through both means.
    count = tf.stop_gradient(count) + (0.0 if mask is None else keras.config.epsilon())
    mean = total / count
    center = tf.stop_gradient(mean) if mask is None else mean
    squares = tf.where(kept, tf.math.squared_difference(x, center), zeros)
    (squares,) = _total(shard, [tf.reduce_sum(squares, axis=axes, keepdims=True)])
    return mean, squares / count


def _new_sync(x: tf.Tensor, axes: Any, keepdims: bool) -> tuple[tf.Tensor, tf.Tensor]:
    """Keras's `_compute_moments_sync`."""
    shard = current_shard()
    if shard is None or shard.add_up_replicas is None:
        _note_or_refuse(shard)
        return _keras_sync(x, axes, keepdims)
    mean, variance = _moments_of(shard, x, None, axes)
    if keepdims:
        return mean, variance
    return tf.squeeze(mean, axes), tf.squeeze(variance, axes)


def _note_or_refuse(shard: Shard | None) -> None:
    """Notes that a layer asks for all replicas. Refuses it where they cannot be added up."""
    if shard is not None:
        shard.asks_replicas = True
    replica = tf.distribute.get_replica_context()
    is_part = shard is not None and shard.is_step and not shard.is_whole
    if is_part or (replica is not None and replica.num_replicas_in_sync > 1):
        raise KerasdistError(
            "A layer calls `keras.ops.moments(..., synchronized=True)` where kerasdist cannot add "
            "up the statistics of all shards: `predict`, or a layer that did not do so when the "
            "model was checked. Take the statistics in training only, or use `devices=1, shards=1`."
        )


def _new_moments(
    self: keras.layers.BatchNormalization, inputs: tf.Tensor, mask: tf.Tensor | None
) -> tuple[tf.Tensor, tf.Tensor]:
    """`BatchNormalization._moments`."""
    shard = current_shard()
    is_wanted = shard is not None and (self.synchronized or shard.synchronizes_all)
    if shard is None or not is_wanted or shard.add_up_replicas is None:
        if self.synchronized:
            _note_or_refuse(shard)
        return _keras_moments(self, inputs, mask)
    kept = None if mask is None else tf.expand_dims(tf.cast(mask, tf.bool), -1)
    axes = self._reduction_axes
    mean, variance = _moments_of(shard, inputs, kept, axes)
    return tf.squeeze(mean, axes), tf.squeeze(variance, axes)


def apply(replace: Replace) -> None:
    """Replaces Keras's functions. Without a shard on several replicas, they do the same."""
    replace(keras_nn, "_compute_moments_sync", _new_sync)
    replace(keras.layers.BatchNormalization, "_moments", _new_moments)
