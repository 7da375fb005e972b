"""Reads from a batch the fields that a model names: features, targets and sample weights."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from dataclasses import dataclass
from typing import Any

import keras

from kerasdist.errors import KerasdistError, closest
from kerasdist.models.contract import Model

# Tensors, arrays or specs in nested tuples, lists and dicts.
Batch = Any


@dataclass(frozen=True)
class Example:
    """A batch as the model reads it. The model gets `args`, `compute_loss` gets `x`."""

    args: tuple[Any, ...]
    x: Any
    y: Any
    sample_weight: Any


def named_leaves(structure: Any) -> list[tuple[str, Any]]:
    """Returns `("a/0", leaf)` for each leaf that is not None. A bare leaf has the name ""."""
    pairs = keras.tree.flatten_with_path(structure)
    return [("/".join(str(key) for key in path), leaf) for path, leaf in pairs if leaf is not None]


def read(model: keras.Model, batch: Batch, *, need_targets: bool = True) -> Example:
    """Sorts the fields of a batch into model inputs, targets and sample weights.

    A dict is read by the model's `features`, `targets` and `sample_weight`. A tuple for a model
    that names its fields is read by position, in that order. All other models follow Keras's
    convention `(x, y, sample_weight)`.
    """
    names = _names_read(model)
    if not names:
        return _read_keras(model, batch, need_targets)
    features, targets, weight = (
        _as_tuple(model.features),
        _as_tuple(model.targets),
        model.sample_weight,
    )
    if not isinstance(batch, Mapping):
        batch = _by_position(model, batch, names, len(features))
    args = tuple(_field(batch, name, "features", model) for name in features)
    if not need_targets and any(name not in batch for name in targets):
        return Example(args, _one_or_tuple(args), None, None)
    y = tuple(_field(batch, name, "targets", model) for name in targets)
    sample_weight = None
    if weight is not None and (need_targets or weight in batch):
        sample_weight = _field(batch, weight, "sample_weight", model)
    return Example(args, _one_or_tuple(args), _one_or_tuple(y) if y else None, sample_weight)


def fields_read(model: keras.Model, batch: Batch) -> list[tuple[str, Any]]:
    """Returns `(name, tensor)` for everything in a batch that `read` takes from it."""
    names = _names_read(model)
    if not names and isinstance(batch, (tuple, list)) and len(batch) > 3:
        return named_leaves(batch)  # Only a step of the model's own reads such a batch.
    if not names:
        example = _read_keras(model, batch, need_targets=False)
        batch = {"x": example.x, "y": example.y, "sample_weight": example.sample_weight}
        names = tuple(batch)
    else:
        batch = _named(model, batch, names)
    return [
        (f"{name}/{path}".rstrip("/"), leaf)
        for name in names
        for path, leaf in named_leaves(batch.get(name))
    ]


def targets_read(model: keras.Model, batch: Batch) -> Any:
    """Returns the targets as `read` gives them, or None if the batch has no targets."""
    names = _names_read(model)
    if not names and isinstance(batch, (tuple, list)) and len(batch) > 3:
        return None
    if not names:
        return _read_keras(model, batch, need_targets=False).y
    batch = _named(model, batch, names)
    targets = _as_tuple(model.targets)
    if not targets or any(name not in batch for name in targets):
        return None
    return _one_or_tuple(tuple(batch[name] for name in targets))


def has_unread(model: keras.Model, batch: Batch) -> bool:
    """Whether a batch has named fields that the model does not read."""
    names = _names_read(model)
    return bool(names) and isinstance(batch, Mapping) and any(name not in names for name in batch)


def only_read(model: keras.Model, batch: Mapping[str, Any]) -> dict[str, Any]:
    """Removes the named fields that the model does not read."""
    return {name: batch[name] for name in _names_read(model) if name in batch}


def _names_read(model: keras.Model) -> tuple[str, ...]:
    """The fields that a model names, in order. Empty if it follows Keras's convention."""
    if not isinstance(model, Model) or not _as_tuple(model.features):
        return ()
    return tuple(
        f for part in (model.features, model.targets, model.sample_weight) for f in _as_tuple(part)
    )


def _as_tuple(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return () if names is None else (names,) if isinstance(names, str) else tuple(names)


def _one_or_tuple(values: tuple[Any, ...]) -> Any:
    return values[0] if len(values) == 1 else values


def _field(batch: Mapping[str, Any], name: str, role: str, model: keras.Model) -> Any:
    if name not in batch:
        raise KerasdistError(
            f"Received data with the fields {_sorted_names(batch)}, but "
            f"`{type(model).__name__}.{role}` names {name!r}. Expected a field of that name."
            f"{closest(name, batch)} Rename the field, or change `{role}`."
        )
    return batch[name]


def _sorted_names(batch: Mapping[Any, Any]) -> list[str]:
    return sorted(str(name) for name in batch)


def _as_positions(batch: Batch, num_features: int = 1) -> tuple[Any, ...]:
    """The positions of a batch. A list of several features takes one position."""
    values = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    is_list = num_features > 1 and len(values) == 1 and isinstance(values[0], (tuple, list))
    return tuple(values[0]) if is_list else values


def _named(model: keras.Model, batch: Batch, names: tuple[str, ...]) -> Mapping[str, Any]:
    """The batch by the model's names, as far as it has positions for them."""
    if isinstance(batch, Mapping):
        return batch
    positions = _as_positions(batch, len(_as_tuple(model.features)))
    return dict(zip(names, positions, strict=False))


def _by_position(
    model: keras.Model, batch: Batch, names: tuple[str, ...], at_least: int
) -> dict[str, Any]:
    values = _as_positions(batch, at_least)
    if not at_least <= len(values) <= len(names):
        raise KerasdistError(
            f"Each batch is a tuple of {_items(values)}. Expected {len(names)}, in the order of "
            f"`{type(model).__name__}`'s fields: {', '.join(names)}. Return that many, or a dict "
            "with these names."
        )
    return dict(zip(names, values, strict=False))


def _items(values: Sized) -> str:
    return "1 item" if len(values) == 1 else f"{len(values)} items"


def _read_keras(model: keras.Model, batch: Batch, need_targets: bool) -> Example:
    if isinstance(batch, Mapping) and need_targets and isinstance(model, Model):
        raise KerasdistError(
            f"Received data with the fields {_sorted_names(batch)} for `{type(model).__name__}`, "
            "which does not say which of them it reads. Expected the class attributes `features` "
            f"and `targets`. Add for example `features = {_sorted_names(batch)[0]!r}`."
        )
    batch = _as_positions(batch)
    if not 1 <= len(batch) <= 3:
        raise KerasdistError(
            f"Each batch is a tuple of {_items(batch)}. Expected `(x,)`, `(x, y)` or "
            "`(x, y, sample_weight)`. For more fields, yield dicts and name them in a "
            "`kerasdist.Model`."
        )
    x, y, sample_weight = (*batch, None, None)[:3]
    return Example((x,), x, y, sample_weight)
