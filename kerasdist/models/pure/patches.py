"""Patches Keras while a step is traced: losses know about shards, optimizers are functional.

Recurrent layers are replaced by a quicker version on CPUs, and do not use cuDNN there or in XLA.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src import backend as keras_backend
from keras.src.backend.tensorflow import numpy as keras_numpy
from keras.src.backend.tensorflow import random as keras_random
from keras.src.backend.tensorflow.optimizer import TFOptimizer
from keras.src.losses import loss as keras_loss
from keras.src.optimizers.base_optimizer import BaseOptimizer

from kerasdist.devices import private_tensorflow
from kerasdist.devices.placement import HOST
from kerasdist.models.pure import added_losses
from kerasdist.models.pure.layers import older_layers, recurrence, synchronized
from kerasdist.models.pure.replacements import Replace, Replacements
from kerasdist.models.pure.shard import current_shard
from kerasdist.models.pure.updates import in_place

# Keras's function `rnn` hides the module of that name.
_keras_rnn = importlib.import_module("keras.src.backend.tensorflow.rnn")


_keras_reduce = keras_loss.reduce_weighted_values
_keras_mean_update = keras.metrics.Mean.update_state


def _reduce_weighted_values(
    values: tf.Tensor,
    sample_weight: tf.Tensor | None = None,
    mask: tf.Tensor | None = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: Any = None,
) -> tf.Tensor:
    """Keras's reduction, corrected: multiplied by `weight`, it adds up over shards to the whole."""
    value = _keras_reduce(values, sample_weight, mask, reduction, dtype)
    shard = current_shard()
    if shard is None or reduction in (None, "none"):
        return value
    if _is_scalar(values):
        is_masked_sum = mask is not None and reduction == "sum"
        shard.weighs_scalars |= sample_weight is not None or is_masked_sum
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


def _mean_update_state(
    self: keras.metrics.Mean, values: tf.Tensor, sample_weight: tf.Tensor | None = None
) -> None:
    """`Mean.update_state`, where a scalar counts once per global batch, not once per shard.

    So do the losses of several outputs. Keras weighs them with the batch's size if the graph knows
    it. A graph that reads batches of several sizes does not know it (3.15.1).
    """
    shard = current_shard()
    if shard is not None and id(self) in shard.losses_of_outputs:
        sample_weight = shard.num_examples if shard.is_eager else shard.weight
        sample_weight = keras.ops.cast(sample_weight, self.dtype)
    elif shard is not None and sample_weight is None and _is_scalar(values):
        sample_weight = keras.ops.cast(shard.weight, self.dtype)
    _keras_mean_update(self, values, sample_weight)


def _is_scalar(values: tf.Tensor) -> bool:
    return len(keras.ops.convert_to_tensor(values).shape) == 0


def _inner_loop(keras_loop: Callable[..., Any]) -> Callable[..., Any]:
    def inner_loop(
        self: keras.layers.RNN,
        sequences: tf.Tensor,
        initial_state: Any,
        mask: tf.Tensor | None,
        training: bool = False,
    ) -> Any:
        shard = current_shard()
        if shard is not None and shard.on_cpu and recurrence.is_quick(self):
            return recurrence.loop(self, sequences, initial_state, mask, shard.is_whole)
        return keras_loop(self, sequences, initial_state, mask, training)

    return inner_loop


def _signbit(keras_signbit: Callable[[Any], tf.Tensor]) -> Callable[[Any], tf.Tensor]:
    """Keras's `signbit`, which `argmax` calls, and with it every accuracy.

    Keras 3.15 compares int32 numbers, which TensorFlow does on the host: on GPUs it would copy all
    outputs of the model there.
    """

    def signbit(x: Any) -> tf.Tensor:
        x = keras.ops.convert_to_tensor(x)
        if not x.dtype.is_floating:
            return keras_signbit(x)
        return tf.bitcast(tf.cast(x, tf.float32), tf.uint32) >= tf.constant(2**31, tf.uint32)

    return signbit


def _on_host(keras_function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Keras's `draw_seed` and `_cast_seed`, which every random operation calls.

    Operations that draw random numbers on GPUs take their seeds from the host. Keras 3.15 computes
    them on the GPU: the host would wait for a copy for each layer.
    """

    def on_host(seed: Any) -> Any:
        with tf.device(HOST) if _is_gpu_step() else contextlib.nullcontext():
            return keras_function(seed)

    return on_host


def _embedding_call(keras_call: Callable[..., Any]) -> Callable[..., Any]:
    """`Embedding.call`, with int64 numbers on GPUs.

    TensorFlow does most operations on int32 on the host: for the gradient, all numbers would come
    back from the GPU.
    """

    def call(self: keras.layers.Embedding, inputs: Any) -> tf.Tensor:
        if _is_gpu_step() and tf.is_tensor(inputs) and inputs.dtype == tf.int32:
            inputs = tf.cast(inputs, tf.int64)
        return keras_call(self, inputs)

    return call


def _is_gpu_step() -> bool:
    """Whether a shard is traced for a GPU, without XLA."""
    shard = current_shard()
    return not (shard is None or shard.on_cpu or shard.is_jit)


def _has_cudnn(keras_answer: Callable[[], bool]) -> Callable[[], bool]:
    """Keras uses cuDNN for recurrent layers if the machine has a GPU, wherever the layer runs.

    Neither CPUs nor XLA have cuDNN's operations. Then a layer runs as on a machine without GPUs.
    """

    def has_cudnn() -> bool:
        shard = current_shard()
        is_allowed = shard is None or not (shard.on_cpu or shard.is_jit)
        return is_allowed and keras_answer()

    return has_cudnn


def _variable_key(self: TFOptimizer, variable: Any) -> str:
    # TFOptimizer takes the key from `variable.value`, which is a tensor inside a StatelessScope.
    native = variable._value if isinstance(variable, keras_backend.Variable) else variable
    return private_tensorflow.id_of(native)


# TFOptimizer replaces these with versions for tf.distribute that need real variables.
_FUNCTIONAL = (
    "assign",
    "assign_add",
    "assign_sub",
    "_apply_weight_decay",
)


def _apply_patches(replace: Replace) -> None:
    for name in _FUNCTIONAL:
        replace(TFOptimizer, name, vars(BaseOptimizer)[name])
    update_step = vars(BaseOptimizer)["_backend_update_step"]
    replace(TFOptimizer, "_backend_update_step", in_place.one_by_one(update_step))
    replace(TFOptimizer, "_var_key", _variable_key)
    replace(keras_loss, "scale_loss_for_distribution", lambda value: value)
    replace(keras_loss, "unscale_loss_for_distribution", lambda value: value)
    replace(keras_loss, "reduce_weighted_values", _reduce_weighted_values)
    replace(keras.metrics.Mean, "update_state", _mean_update_state)
    replace(keras_numpy, "signbit", _signbit(keras_numpy.signbit))
    for name in ("draw_seed", "_cast_seed"):
        replace(keras_random, name, _on_host(vars(keras_random)[name]))
    replace(keras.layers.Embedding, "call", _embedding_call(keras.layers.Embedding.call))
    for layer in (keras.layers.GRU, keras.layers.LSTM):
        replace(layer, "inner_loop", _inner_loop(layer.inner_loop))
    older_layers.apply(replace)
    added_losses.apply(replace)
    synchronized.apply(replace)
    replace(_keras_rnn, "_is_gpu_available", _has_cudnn(_keras_rnn._is_gpu_available))


_REPLACED = Replacements(_apply_patches)


def patched() -> contextlib.AbstractContextManager[None]:
    """Inside, Keras's optimizers are functional, and losses know about shards.

    Outside of `tracing` the patched functions do the same as Keras's own, except that losses are
    not divided by the number of replicas.
    """
    return _REPLACED.active()
