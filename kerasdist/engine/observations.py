"""What a summary shows of one step: collected on each replica, then made into arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.devices.worker import Workers
from kerasdist.engine.shards import leaves
from kerasdist.engine.state import State
from kerasdist.models import pure
from kerasdist.models.fields import fields_read, read

IMAGES_A_REPLICA = 4
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class Observation:
    """One step, as a summary shows it.

    `replica_losses` has NaN where a replica had no example. `data_loss` is the loss without
    `regularization` (of weights) and `added` (by `add_loss`); None if the model computes its loss
    itself, and so alone knows the parts. `images` and `targets` have a dict of fields a replica.
    `gradients` are of the global batch, before clipping; `variables` have their new values.
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


class Observer:
    """Collects tensors into `seen` while a step is traced on one replica.

    Nothing here is read by the step itself, which computes the same bits with and without it.
    """

    def __init__(self, model: keras.Model, roles: pure.Parts):
        self._model, self._roles = model, roles
        self._num_terms = 0
        self.seen: dict[str, Any] = {}

    def terms(self, added: tf.Tensor | None) -> list[tf.Tensor]:
        """What is to be added up over this replica's shards: its part of `add_loss` losses."""
        self._num_terms = 0 if added is None else 1
        return [] if added is None else [added]

    def take_terms(self, sums: list[tf.Tensor]) -> list[tf.Tensor]:
        """Takes the sums of `terms` out of a replica's sums."""
        if not self._num_terms:
            return sums
        self.seen["added"] = sums[-1]
        return sums[:-1]

    def look(
        self,
        batch: Any,
        span: tf.Tensor | None,
        replica: tf.Tensor | int,
        num_replicas: int,
        own_loss: tf.Tensor,
        gradients: Sequence[tf.Tensor | None],
        trainable: Sequence[tf.Tensor],
        optimizer: Sequence[tf.Tensor],
    ) -> None:
        """Takes the rest: `trainable` and `optimizer` are the values at the step's start."""
        model, roles = self._model, self._roles
        count = tf.shape(leaves(read(model, batch).args)[0], out_type=tf.int64)[0]
        count, offset = (count, 0) if span is None else (span[0], span[1])
        # The rows of its neighbouring shards.
        first, last = (tf.cast(i, tf.int64) * count // num_replicas for i in (replica, replica + 1))
        share = tf.cast(last - first, tf.float64) / tf.cast(count, tf.float64)
        images, targets = _images(model, batch, first - offset, last - offset)
        self.seen |= {
            "loss": tf.math.divide_no_nan(tf.cast(own_loss, tf.float64), share),
            "num_examples": last - first,
            "images": images,
            "targets": targets,
            "gradients": by_name(
                (variable.path, gradient)
                for variable, gradient in zip(roles.trainable, gradients, strict=True)
                if gradient is not None
            ),
        }
        penalties = [
            _scalar(variable.regularizer(value))
            for variable, value in zip(roles.trainable, trainable, strict=True)
            if variable.regularizer is not None
        ]
        if penalties:
            self.seen["regularization"] = tf.add_n(penalties)
        with keras.StatelessScope(list(zip(roles.optimizer, optimizer, strict=True))):
            self.seen["learning_rate"] = _scalar(model.optimizer.learning_rate)
            inner, scale, _ = pure.loss_scale(model.optimizer)
            scale = inner.loss_scale_factor if scale is None else scale
            if scale is not None:
                self.seen["loss_scale"] = _scalar(scale)


def observation(
    model: keras.Model,
    loss: float,
    replicas: Sequence[Mapping[str, Any]],
    variables: Mapping[str, np.ndarray],
    graph: Callable[[], tf.compat.v1.GraphDef],
) -> Observation:
    """Arrays of what every replica's `Observer` saw."""
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


def of_all(replicas: Sequence[Mapping[str, Any]], workers: Workers | None) -> list[Any]:
    """With the numbers of the other workers' replicas; their images stay there."""
    if workers is None:
        return list(replicas)
    names = [name for name in ("loss", "num_examples", "added") if name in replicas[0]]
    own = np.array([[float(replica[name]) for name in names] for replica in replicas])
    rows = np.concatenate(list(workers.gather(own)))
    first = workers.cluster.index * len(replicas)
    found: list[Any] = [
        {**replicas[0], "images": {}, "targets": {}, **dict(zip(names, row, strict=True))}
        for row in rows
    ]
    found[first : first + len(replicas)] = replicas
    return found


def float_weights(roles: pure.Parts, state: State) -> dict[str, np.ndarray]:
    """Values of the weights by their paths, without counters."""
    pairs = [
        (owner.path, array)
        for role in ("trainable", "other")
        for owner, array in zip(getattr(roles, role), state.arrays(role), strict=True)
        if tf.as_dtype(array.dtype).is_floating
    ]
    return by_name(pairs)


def by_name(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    """A dict; names that come again, as Keras's paths may, get a number."""
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
    """The first rows of the features that are images, and of the targets that look like them."""
    example = read(model, batch)
    of_features = {id(tensor) for tensor in leaves(example.args)}
    of_targets = {id(tensor) for tensor in leaves(example.y)}
    fields = fields_read(model, batch)
    images = {name: t for name, t in fields if id(t) in of_features and _is_image(t)}
    targets = {name: t for name, t in fields if id(t) in of_targets and _is_image(t)}
    sizes = [tensor.shape[1:3].as_list() for tensor in images.values()]
    for name, tensor in fields:
        # A map of classes has the size of its image; others of this rank are sequences.
        is_map = tensor.shape.rank == 3 and tensor.shape[1:].as_list() in sizes
        if id(tensor) in of_targets and is_map and _is_shown(tensor):
            targets[name] = tensor[..., tf.newaxis]
    last = tf.minimum(last, first + IMAGES_A_REPLICA)
    images, targets = (
        {name: tensor[first:last] for name, tensor in each.items()} for each in (images, targets)
    )
    return images, targets


def _is_image(tensor: tf.Tensor) -> bool:
    return tensor.shape.rank == 4 and tensor.shape[3] in _CHANNELS and _is_shown(tensor)


def _is_shown(tensor: tf.Tensor) -> bool:
    return tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool
