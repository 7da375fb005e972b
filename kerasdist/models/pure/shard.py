"""One shard of a batch, while it is traced: what losses, metrics and layers need to know of it."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import tensorflow as tf

from kerasdist.errors import KerasdistError
from kerasdist.models.pure.steps import tf_random

Tensors = Sequence[tf.Tensor]


@dataclass
class Shard:
    """What the loss and the metrics need to know while one shard of a batch is traced.

    Attributes:
        num_examples: Examples of this shard. An empty shard has 0 and runs on a borrowed example.
        num_global: Examples of the global batch. Both numbers are integers if they are known while
            tracing.
        global_denominators: For losses that do not divide by the number of examples: what they
            divide by, over the whole global batch. None while the denominators are collected.
        local_denominators: The same over this shard, collected while tracing.
        losses_of_outputs: Ids of Keras's metrics for the losses of several outputs. They weigh
            batches by their size if the model `is_eager`.
        is_eager: Whether the model is compiled with `run_eagerly`.
        on_cpu: Whether recurrent layers may use the version for CPUs.
        is_jit: Whether XLA compiles the shard.
        is_step: Whether a step runs, in which denominators must be known, not collected.
        add_up_replicas: Adds up tensors over all replicas, for statistics over the whole batch.
            None if a replica is not one shard, or nothing needs it.
        asks_replicas: Whether a layer asked for statistics over all replicas, while tracing.
        synchronizes_all: Whether every BatchNormalization takes statistics over the whole batch.
        later_weight: A factor by which the caller multiplies the gradients of this shard.
        draw_seed: Two whole numbers from which `tf.random` draws. None leaves it as it is.
        one_row: For which shapes `tf.random` draws one row and repeats it.
        weighs_scalars: Whether a loss multiplies one number for its batch by the weights of all
            examples, while tracing. A product of two means does not add up.
    """

    num_examples: tf.Tensor | int
    num_global: tf.Tensor | int
    global_denominators: Tensors | None = None
    local_denominators: list[tf.Tensor] = field(default_factory=list)
    losses_of_outputs: frozenset[int] = frozenset()
    is_eager: bool = False
    on_cpu: bool = False
    is_jit: bool = False
    is_step: bool = False
    add_up_replicas: Callable[[list[tf.Tensor]], list[tf.Tensor]] | None = None
    asks_replicas: bool = False
    synchronizes_all: bool = False
    later_weight: tf.Tensor | None = None
    draw_seed: tf.Tensor | None = None
    one_row: Callable[[Any], bool] | None = None
    weighs_scalars: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether this shard is the whole global batch. Known while tracing."""
        return self.num_examples is self.num_global

    @property
    def weight(self) -> tf.Tensor:
        """This shard's share of the global batch."""
        return tf.cast(self.num_examples, "float64") / tf.cast(self.num_global, "float64")

    def share(self, denominator: tf.Tensor) -> tf.Tensor:
        """The factor for a loss that divides by `denominator` instead of the number of examples.

        Such a loss must count with `local / global` of its denominator. The step multiplies the
        whole loss of a shard by `weight`, so this factor is `local / global / weight`.
        """
        index = len(self.local_denominators)
        self.local_denominators.append(denominator)
        known = () if self.global_denominators is None else self.global_denominators
        if self.is_step and not self.is_whole and index >= len(known):
            raise KerasdistError(
                "A loss is not a mean over examples for this batch, although it was when the model "
                "was checked. On several shards, the loss must be computed in the same way for "
                "every batch. Use a mean over examples, or `devices=1, shards=1`."
            )
        if self.global_denominators is None:
            return tf.ones((), denominator.dtype)
        whole = tf.cast(self.global_denominators[index], denominator.dtype)
        return tf.math.divide_no_nan(denominator, whole) * self.inverse_weight(denominator.dtype)

    def inverse_weight(self, dtype: tf.DType) -> tf.Tensor:
        own = tf.cast(tf.maximum(self.num_examples, 1), "float64")
        return tf.cast(tf.cast(self.num_global, "float64") / own, dtype)


# Each replica is traced in its own thread.
_active = threading.local()


def current_shard() -> Shard | None:
    return getattr(_active, "shard", None)


@contextlib.contextmanager
def tracing(shard: Shard | None) -> Iterator[None]:
    """Losses and metrics that run inside belong to this shard."""
    before = current_shard()
    _active.shard = shard
    try:
        with contextlib.ExitStack() as stack:
            if shard is not None and shard.draw_seed is not None:
                stack.enter_context(tf_random.drawing(shard.draw_seed, shard.one_row))
            yield
    finally:
        _active.shard = before
