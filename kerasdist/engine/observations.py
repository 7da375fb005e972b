"""What a summary shows of one step: collected on each replica, then turned into arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.devices.placement import Placement
from kerasdist.devices.worker import Workers
from kerasdist.engine.shards import Number, leaves
from kerasdist.engine.state import Start, State
from kerasdist.engine.terms import Terms
from kerasdist.engine.train_step import Details
from kerasdist.models import pure
from kerasdist.models.fields import fields_read, read
from kerasdist.models.optimizers.shown_rate import learning_rate
from kerasdist.models.tensors.composites import count_rows, is_composite

IMAGES_PER_REPLICA = 4
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Observation:
    """One step, as a summary shows it.

    Attributes:
        loss: The loss of the global batch.
        replica_losses: The loss of each replica's part; NaN if a replica had no example.
        data_loss: The loss without `regularization` and `added`. None if the model overrides
            `compute_loss`: then only the model knows the parts.
        regularization: The penalties of the weights; None if there are none.
        added: The losses by `add_loss`; None if there are none.
        learning_rate: What this step used.
        loss_scale: What this step used; None if there is none.
        variables: The new values of the weights.
        gradients: The gradients of the global batch, before clipping.
        images: For each replica, the fields that are images.
        targets: For each replica, the targets that look like images.
        graph: Makes the graph of the step.
    """

    loss: float
    replica_losses: tuple[float, ...]
    data_loss: float | None
    regularization: float | None
    added: float | None
    learning_rate: float
    loss_scale: float | None
    variables: Mapping[str, np.ndarray]
    gradients: Mapping[str, np.ndarray]
    images: tuple[Mapping[str, np.ndarray], ...]
    targets: tuple[Mapping[str, np.ndarray], ...]
    graph: Callable[[], tf.compat.v1.GraphDef]


@dataclass(frozen=True)
class Observer:
    """Collects what a summary shows of one step, on one replica.

    The step itself reads none of it. So it computes the same bits with and without an observer.
    """

    model: keras.Model
    roles: pure.Parts
    placement: Placement
    terms: Terms

    def look(self, replica: Number, batch: Any, start: Start, details: Details) -> dict[str, Any]:
        """Tensors by name, and dicts of tensors for images, targets and gradients."""
        seen = self._of_replica(
            replica, batch, self.terms.split(details.own, start.inputs.variables).loss
        )
        seen["gradients"] = by_name(
            (variable.path, gradient)
            for variable, gradient in zip(self.roles.trainable, details.gradients, strict=True)
            if gradient is not None
        )
        if details.added:
            (seen["added"],) = details.added
        penalties = [
            _scalar(variable.regularizer(value))
            for variable, value in zip(self.roles.trainable, start.trainable, strict=True)
            if variable.regularizer is not None
        ]
        if penalties:
            seen["regularization"] = tf.add_n(penalties)
        return seen | self._of_optimizer(start)

    def _of_replica(self, replica: Number, batch: Any, own_loss: tf.Tensor) -> dict[str, Any]:
        batch, span = batch if self.placement.has_parts else (batch, None)
        count = count_rows(leaves(read(self.model, batch).args)[0])
        count, offset = (count, 0) if span is None else (span[0], span[1])
        # The rows of this replica's shards, which are neighbours.
        num_replicas = self.placement.num_replicas
        first, last = (tf.cast(i, tf.int64) * count // num_replicas for i in (replica, replica + 1))
        share = tf.cast(last - first, tf.float64) / tf.cast(count, tf.float64)
        images, targets = _images(self.model, batch, first - offset, last - offset)
        return {
            "loss": tf.math.divide_no_nan(tf.cast(own_loss, tf.float64), share),
            "num_examples": last - first,
            "images": images,
            "targets": targets,
        }

    def _of_optimizer(self, start: Start) -> dict[str, tf.Tensor]:
        optimizer = self.model.optimizer
        with keras.StatelessScope(list(zip(self.roles.optimizer, start.optimizer, strict=True))):
            seen = {"learning_rate": _scalar(learning_rate(optimizer))}
            inner, scale, _ = pure.loss_scale(optimizer)
            scale = inner.loss_scale_factor if scale is None else scale
            if scale is not None:
                seen["loss_scale"] = _scalar(scale)
        return seen


def observation(
    model: keras.Model,
    loss: float,
    replicas: Sequence[Mapping[str, Any]],
    variables: Mapping[str, np.ndarray],
    graph: Callable[[], tf.compat.v1.GraphDef],
) -> Observation:
    """Arrays of what the `Observer` of every replica saw."""
    first = replicas[0]
    regularization, loss_scale = (
        float(first[name]) if name in first else None for name in ("regularization", "loss_scale")
    )
    added = sum(float(replica["added"]) for replica in replicas) if "added" in first else None
    is_split = not pure.overrides(model, "compute_loss")
    return Observation(
        loss=loss,
        replica_losses=tuple(
            float(r["loss"]) if r["num_examples"] > 0 else float("nan") for r in replicas
        ),
        data_loss=loss - (regularization or 0.0) - (added or 0.0) if is_split else None,
        regularization=regularization,
        added=added,
        learning_rate=float(first["learning_rate"]),
        loss_scale=loss_scale,
        variables=variables,
        # The same on every replica.
        gradients=_arrays(first["gradients"]),
        images=tuple(_arrays(replica["images"]) for replica in replicas),
        targets=tuple(_arrays(replica["targets"]) for replica in replicas),
        graph=graph,
    )


def with_other_workers(
    replicas: Sequence[Mapping[str, Any]], workers: Workers | None
) -> list[Mapping[str, Any]]:
    """What all replicas saw. Of other workers' replicas there are numbers, but no images."""
    if workers is None:
        return list(replicas)
    names = [name for name in ("loss", "num_examples", "added") if name in replicas[0]]
    own = np.array([[float(replica[name]) for name in names] for replica in replicas])
    rows = np.concatenate(list(workers.gather(own)))
    first = workers.cluster.index * len(replicas)
    found: list[Mapping[str, Any]] = [
        {**replicas[0], "images": {}, "targets": {}, **dict(zip(names, row, strict=True))}
        for row in rows
    ]
    found[first : first + len(replicas)] = replicas
    return found


def float_weights(roles: pure.Parts, state: State) -> dict[str, np.ndarray]:
    """The values of the weights by path, without whole numbers such as counters."""
    pairs = [
        (owner.path, array)
        for role in ("trainable", "other")
        for owner, array in zip(getattr(roles, role), state.arrays(role), strict=True)
        if tf.as_dtype(array.dtype).is_floating
    ]
    return by_name(pairs)


def by_name(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A dict. Keras's paths may repeat: then the later ones get a number."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        unique, number = name, 1
        while unique in found:
            unique, number = f"{name}_{number}", number + 1
        found[unique] = value
    return found


def _arrays(tensors: Mapping[str, tf.Tensor]) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in tensors.items()}


def _scalar(value: Any) -> tf.Tensor:
    return tf.reduce_sum(tf.cast(keras.ops.convert_to_tensor(value), tf.float32))


def _images(
    model: keras.Model, batch: Any, first: tf.Tensor, last: tf.Tensor
) -> tuple[dict[str, tf.Tensor], dict[str, tf.Tensor]]:
    """The first rows of features that are images, and of targets that look like images."""
    example = read(model, batch)
    of_features = {id(tensor) for tensor in leaves(example.args)}
    of_targets = {id(tensor) for tensor in leaves(example.y)}
    fields = fields_read(model, batch)
    images = {name: t for name, t in fields if id(t) in of_features and _is_image(t)}
    targets = {name: t for name, t in fields if id(t) in of_targets and _is_image(t)}
    sizes = [tensor.shape[1:3].as_list() for tensor in images.values()]
    for name, tensor in fields:
        # A map of classes has the size of its image. Other tensors of this rank are sequences.
        is_map = tensor.shape.rank == 3 and tensor.shape[1:].as_list() in sizes
        if id(tensor) in of_targets and is_map and _is_shown(tensor):
            targets[name] = tensor[..., tf.newaxis]
    last = tf.minimum(last, first + IMAGES_PER_REPLICA)
    images, targets = (
        {name: tensor[first:last] for name, tensor in each.items()} for each in (images, targets)
    )
    return images, targets


def _is_image(tensor: tf.Tensor) -> bool:
    return tensor.shape.rank == 4 and tensor.shape[3] in _CHANNELS and _is_shown(tensor)


def _is_shown(tensor: tf.Tensor) -> bool:
    is_number = tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool
    return is_number and not is_composite(tensor)
