"""Calls the user's `augment` with a seed that depends on the position of a batch alone."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TypeAlias

import tensorflow as tf

from kerasdist.data.batches import Batch, Spec
from kerasdist.data.streams import Stream
from kerasdist.errors import KerasdistError
from kerasdist.models.tensors.composites import as_tensor

# The user's function: `augment(batch, seed)` or `augment(batch, seed, epoch)`.
Augment: TypeAlias = Callable[..., Batch]
# The same function, always called with batch, seed and epoch.
AugmentWithEpoch: TypeAlias = Callable[[Batch, tf.Tensor, tf.Tensor], Batch]


def with_epoch(augment: Augment) -> AugmentWithEpoch:
    """Makes `augment` a function of batch, seed and epoch, also if it does not take the epoch."""
    try:
        wants_epoch = "epoch" in inspect.signature(augment).parameters
    except (TypeError, ValueError):
        wants_epoch = False

    def whole(batch: Batch, seed: tf.Tensor, epoch: tf.Tensor) -> Batch:
        return augment(batch, seed, epoch=epoch) if wants_epoch else augment(batch, seed)

    return whole


def element_spec(stream: Stream, augment: Augment | None) -> Spec:
    """The spec of the batches that the model gets; None if there is no batch."""
    if augment is not None and not _takes_seed(augment):
        raise KerasdistError(
            f"Received `augment={augment!r}`. Expected a function of a batch and a seed. Write "
            "`def augment(batch, seed)` and return the batch."
        )
    spec = stream.element_spec
    if spec is None or augment is None:
        return spec
    return augmented_spec(spec, with_epoch(augment))


def _takes_seed(augment: object) -> bool:
    """Whether it can be called with a batch and a seed, as far as its signature tells."""
    if not callable(augment):
        return False
    try:
        signature = inspect.signature(augment)
    except (TypeError, ValueError):
        return True
    epoch = {"epoch": None} if "epoch" in signature.parameters else {}
    try:
        signature.bind(None, None, **epoch)
    except TypeError:
        return False
    return True


def augmented_spec(spec: Spec, augment: AugmentWithEpoch) -> Spec:
    """The spec of a batch after augmentation, found by tracing `augment`."""

    def traced(batch: Batch, seed: tf.Tensor, epoch: tf.Tensor) -> Batch:
        return augment(batch, seed, epoch)

    place = tf.TensorSpec([2], tf.int64), tf.TensorSpec([], tf.int64)
    outputs = tf.function(traced).get_concrete_function(spec, *place).structured_outputs
    for tensor in tf.nest.flatten(outputs):
        if tensor is None or not tensor.shape.rank:
            found = tensor if tensor is None else f"a tensor of the shape {tensor.shape}"
            raise KerasdistError(
                f"Received {found} from `augment`. Expected a batch of known shapes, like the one "
                "it was given. Return the batch, and call `tf.ensure_shape` after "
                "`tf.numpy_function`."
            )
    return tf.nest.map_structure(tf.type_spec_from_value, outputs)


def first_batch(stream: Stream, augment: Augment | None) -> Batch:
    """The first batch as the model gets it. The stream still returns it afterwards."""
    batch = stream.first_batch()
    if augment is None:
        return batch
    batch = tf.nest.map_structure(as_tensor, batch)
    zero = tf.constant(0, tf.int64)
    return tf.function(with_epoch(augment))(batch, position_seed(0, 0, zero), zero)


def position_seed(seed: int, epoch: int | tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """A seed for stateless random functions. Depends on (seed, epoch, batch number) alone."""
    of_pass = _drawn(tf.stack([tf.constant(seed, tf.int64), tf.cast(epoch, tf.int64)]))
    place = tf.stack([tf.cast(number, tf.int64), tf.constant(0, tf.int64)])
    return _drawn(of_pass + place)


def _drawn(seed: tf.Tensor) -> tf.Tensor:
    return tf.random.stateless_uniform(
        (2,), seed, minval=0, maxval=2**31 - 1, dtype=tf.int64, alg="philox"
    )
