"""Checks of the values in the data: finite numbers, and labels that the model has outputs for."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import keras
import numpy as np

from kerasdist.errors import KerasdistError
from kerasdist.models.fields import Batch, fields_read, targets_read
from kerasdist.models.tensors.composites import is_ragged, is_sparse

# Whether NaN and infinity in the data are accepted, an error, or a warning ("warn").
AllowNan: TypeAlias = bool | str
# How many rows are checked at once, so that the check needs little memory.
_ROWS = 4096


@dataclass(frozen=True)
class Labels:
    """A target that holds class numbers: where it is, and how many classes there are."""

    path: tuple[Any, ...]  # keys and indices
    num_classes: int
    ignored: int | None
    name: str | None = None
    number: int = 0

    def of(self, y: Any) -> Any:
        """Finds these labels in the targets `y`.

        As Keras does: by the path of the output, else by the output's name or number.
        """
        found = y
        try:
            for key in self.path:
                if not isinstance(found, (Mapping, list, tuple)):  # An array would give a row.
                    raise KeyError(key)
                found = found[key]
            return found
        except (KeyError, IndexError, TypeError):
            if isinstance(y, Mapping) and self.name in y:
                return y[self.name]
        leaves = keras.tree.flatten(y)
        if self.number >= len(leaves):
            raise KerasdistError(
                f"The data has too few targets ({len(leaves)}): output {self.number}, counted from "
                "0, also has a loss. Expected one target for each output with a loss. Add the "
                "missing targets to the data."
            )
        return leaves[self.number]


def check_arrays(
    model: keras.Model,
    arrays: Batch,
    labels: Sequence[Labels],
    name: str,
    *,
    allow_nan: AllowNan = False,
) -> None:
    """Checks data in memory all at once, for what is checked batch by batch in a stream."""
    for path, array in () if allow_nan is True else fields_read(model, arrays):
        bad = _first_not_finite(array)
        if bad is None:
            continue
        place = f"example {bad} (from 0)"
        if allow_nan != "warn":
            raise KerasdistError(not_finite_message(name, path, place))
        warnings.warn(not_finite_warning(name, path, place), stacklevel=2)
        break
    y = targets_read(model, arrays)
    for label in labels if y is not None else ():
        values = label.of(y)
        wrong = ~((values >= 0) & (values < label.num_classes))  # This way NaN is wrong, too.
        if label.ignored is not None:
            wrong &= values != label.ignored
        if wrong.any():
            place = f"example {int(np.argwhere(wrong)[0][0])} (from 0)"
            raise KerasdistError(label_message(name, label, f"{values[wrong].flat[0]}", place))


def _first_not_finite(array: Any) -> int | None:
    """The number of the first example with NaN or infinity."""
    if is_sparse(array):
        bad = _first_not_finite(array.values.numpy())
        return None if bad is None else int(array.indices[bad, 0])
    if is_ragged(array):
        bad = _first_not_finite(array.flat_values.numpy())
        if bad is None:
            return None
        for splits in reversed(array.nested_row_splits):
            bad = int(np.searchsorted(splits.numpy(), bad, side="right")) - 1
        return bad
    if array.dtype.kind != "f":
        return None
    for start in range(0, len(array), _ROWS):
        bad_rows = ~np.isfinite(array[start : start + _ROWS])
        if bad_rows.any():
            return start + int(np.argwhere(bad_rows)[0][0])
    return None


def not_finite_message(name: str, where: str, place: str) -> str:
    return (
        f"Received NaN or infinity in `{name}` ({where}, {place}). Expected finite numbers: a "
        "single NaN spoils all weights. Remove the example or replace the value, for example with "
        "`np.nan_to_num`. If the model or the loss masks such values, give `allow_nan=True` "
        "(`--allow-nan`)."
    )


def not_finite_warning(name: str, where: str, place: str) -> str:
    return (
        f"`{name}` has NaN or infinity ({where}, {place}). A single NaN spoils all weights, unless "
        "the model or the loss masks it. Remove the example or replace the value, for example with "
        "`np.nan_to_num`. If it is masked, give `allow_nan=True`."
    )


def sizes_message(name: str, names: str, sizes: str, place: str) -> str:
    return (
        f"Received `{name}` with {sizes} examples ({names}; {place}). Expected the same number in "
        "each field, and at least one. Check the code that makes this batch."
    )


def label_message(name: str, label: Labels, value: str, place: str) -> str:
    return (
        f"Received the label {value} in `{name}` ({place}). Expected classes from 0 to "
        f"{label.num_classes - 1}: the model has {label.num_classes} outputs. Correct the label, "
        "or give the model one output per class."
    )
