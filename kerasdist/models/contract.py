"""The model contract: which fields of an example a model reads, and how it is compiled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import keras

from kerasdist.errors import KerasdistError, closest


class Model(keras.Model):
    """A Keras model that names the fields of an example it reads.

    Attributes:
        features: The field, or fields in order, that `call` receives.
        targets: The field, or fields in order, that the loss compares with.
        sample_weight: The field with a weight for each example, or None.

    Example:
        >>> import keras, kerasdist
        >>> class Line(kerasdist.Model):
        ...     features = "x"
        ...     targets = "y"
        ...
        ...     def __init__(self):
        ...         super().__init__()
        ...         self.dense = keras.layers.Dense(1)
        ...
        ...     def call(self, x, training=False):
        ...         return self.dense(x)
        ...
        ...     def defaults(self):
        ...         return dict(optimizer="sgd", loss="mse")
        >>> data = {"x": [[0.0], [1.0]], "y": [[1.0], [3.0]]}
        >>> history = kerasdist.fit(Line(), data, batch_size=2, epochs=3, progress=False)
        >>> len(history.history["loss"])
        3
    """

    features: str | tuple[str, ...] | None = None
    targets: str | tuple[str, ...] | None = None
    sample_weight: str | None = None

    def __new__(cls, *args: Any, **kwargs: Any):
        # keras.Model's drops the arguments: `get_config`, and so a saved model, would have only the
        # defaults of the constructor (Keras 3.15.1).
        return keras.layers.Layer.__new__(cls, *args, **kwargs)

    def defaults(self) -> dict[str, Any]:
        """What `compile` is given when nobody compiled the model."""
        return {}


@dataclass(frozen=True)
class Example:
    """A batch as the model reads it. `args` go to the model, `x` is what `compute_loss` gets."""

    args: tuple
    x: Any
    y: Any
    sample_weight: Any


def named_leaves(structure: Any) -> list[tuple[str, Any]]:
    """`("a/0", leaf)` for each leaf that is there; a bare leaf has the name ""."""
    pairs = keras.tree.flatten_with_path(structure)
    return [("/".join(str(key) for key in path), leaf) for path, leaf in pairs if leaf is not None]


def _as_tuple(names: str | tuple[str, ...] | None) -> tuple[str, ...]:
    return () if names is None else (names,) if isinstance(names, str) else tuple(names)


def _one_or_tuple(values: tuple) -> Any:
    return values[0] if len(values) == 1 else values


def _field(batch: Mapping, name: str, role: str, model: keras.Model) -> Any:
    if name not in batch:
        raise KerasdistError(
            f"Received data with the fields {_names(batch)}, but "
            f"`{type(model).__name__}.{role}` names {name!r}. Expected a field of that name."
            f"{closest(name, batch)} Rename the field, or change `{role}`."
        )
    return batch[name]


def _names(batch: Mapping) -> list[str]:
    return sorted(str(name) for name in batch)


def read(model: keras.Model, batch: Any, *, need_targets: bool = True) -> Example:
    """Sorts a batch into what the model, the loss and the weighting get.

    Named fields go by `features`, `targets` and `sample_weight`; a bare tuple for a model that
    names its fields is matched by position, as `idx_mapping` did; other models follow Keras's
    convention `(x, y, sample_weight)`.
    """
    names = _contract(model)
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


def _contract(model: keras.Model) -> tuple[str, ...]:
    """The fields that a model names, in order; none if it follows Keras's convention."""
    if not isinstance(model, Model) or not _as_tuple(model.features):
        return ()
    return tuple(
        f for part in (model.features, model.targets, model.sample_weight) for f in _as_tuple(part)
    )


def _as_positions(batch: Any, num_features: int = 1) -> tuple:
    """The positions of a batch; a list of several features is one of them."""
    values = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    is_list = num_features > 1 and len(values) == 1 and isinstance(values[0], (tuple, list))
    return tuple(values[0]) if is_list else values


def _by_position(model: keras.Model, batch: Any, names: tuple[str, ...], at_least: int) -> dict:
    values = _as_positions(batch, at_least)
    if not at_least <= len(values) <= len(names):
        raise KerasdistError(
            f"Received batches of {len(values)} positions. Expected {len(names)}, in the order of "
            f"`{type(model).__name__}`'s fields: {', '.join(names)}. Return that many, or a dict "
            "with these names."
        )
    return dict(zip(names, values, strict=False))


def _read_keras(model: keras.Model, batch: Any, need_targets: bool) -> Example:
    if isinstance(batch, Mapping) and need_targets and isinstance(model, Model):
        raise KerasdistError(
            f"Received data with the fields {_names(batch)} for `{type(model).__name__}`, which "
            "does not say which of them it reads. Expected the class attributes `features` and "
            f"`targets`. Add for example `features = {_names(batch)[0]!r}`."
        )
    batch = _as_positions(batch)
    if not 1 <= len(batch) <= 3:
        raise KerasdistError(
            f"Received batches of {len(batch)} positions. Expected `(x,)`, `(x, y)` or "
            "`(x, y, sample_weight)`. For more fields, yield dicts and name them in a "
            "`kerasdist.Model`."
        )
    x, y, sample_weight = (*batch, None, None)[:3]
    return Example((x,), x, y, sample_weight)


def fields_read(model: keras.Model, batch: Any) -> list[tuple[str, Any]]:
    """`(name, tensor)` of what `read` takes from a batch, as far as it is there."""
    names = _contract(model)
    if not names:
        example = _read_keras(model, batch, need_targets=False)
        batch = {"x": example.x, "y": example.y, "sample_weight": example.sample_weight}
        names = tuple(batch)
    elif not isinstance(batch, Mapping):
        positions = _as_positions(batch, len(_as_tuple(model.features)))
        batch = dict(zip(names, positions, strict=False))
    return [
        (f"{name}/{path}".rstrip("/"), leaf)
        for name in names
        for path, leaf in named_leaves(batch.get(name))
    ]


def targets_read(model: keras.Model, batch: Any) -> Any:
    """The targets of a batch as `read` gives them, None where they are not there."""
    names = _contract(model)
    if not names:
        return _read_keras(model, batch, need_targets=False).y
    if not isinstance(batch, Mapping):
        positions = _as_positions(batch, len(_as_tuple(model.features)))
        batch = dict(zip(names, positions, strict=False))
    targets = _as_tuple(model.targets)
    if not targets or any(name not in batch for name in targets):
        return None
    return _one_or_tuple(tuple(batch[name] for name in targets))


def has_unread(model: keras.Model, batch: Any) -> bool:
    """Whether a batch has named fields that a model does not read."""
    names = _contract(model)
    return bool(names) and isinstance(batch, Mapping) and any(name not in names for name in batch)


def only_read(model: keras.Model, batch: Mapping) -> dict[str, Any]:
    """A batch of named fields without those that a model does not read."""
    return {name: batch[name] for name in _contract(model) if name in batch}


def ensure_compiled(model: keras.Model) -> None:
    """Compiles a model that nobody compiled with its own `defaults`, or says what is missing."""
    name = type(model).__name__
    if not model.compiled:
        defaults = model.defaults() if isinstance(model, Model) else {}
        if not defaults:
            raise KerasdistError(
                f"Received the model {name!r}, which is not compiled. Expected a loss and an "
                "optimizer. Call `model.compile(optimizer=..., loss=...)` first, or return them "
                "from `defaults()` of a `kerasdist.Model`."
            )
        model.compile(**defaults)
    if model.optimizer is None:
        raise KerasdistError(
            f"Received the model {name!r} compiled without an optimizer. Expected one. Call "
            "`model.compile(optimizer=..., loss=...)`."
        )
