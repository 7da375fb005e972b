"""Gives the optimizer of a loaded model the state that the run saved."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Sequence
from pathlib import Path

import keras
import numpy as np

from kerasdist.model_files.stored_arrays import opened, reading
from kerasdist.models import pure

# Where a .keras file has it: `optimizer/vars/0`, and so on.
_PLACE = "optimizer/vars/"


def load_from_file(model: keras.Model, path: Path, modules: Collection[str]) -> None:
    """Loads the state from a .keras file, if it has any."""
    if not _has_optimizer(model):
        return
    with opened(path, modules=modules) as (file, found), reading(repr(str(file))):
        names = [name for name in found if name.startswith(_PLACE)]
        arrays = {int(name.removeprefix(_PLACE)): found[name].read() for name in names}
    load(model, [arrays[number] for number in sorted(arrays)])


def load(model: keras.Model, arrays: Sequence[np.ndarray]) -> None:
    """Loads the state from arrays in the order of the optimizer's variables."""
    if not arrays or not _has_optimizer(model):
        return
    pure.build_optimizer(model)
    variables = model.optimizer.variables
    shapes = [tuple(v.shape) for v in variables]
    if shapes != [array.shape for array in arrays]:
        warnings.warn(
            f"the optimizer {type(model.optimizer).__name__} of the loaded model begins anew: the "
            "run saved the state of another one, or of other weights",
            stacklevel=4,
        )
        return
    for variable, array in zip(variables, arrays, strict=True):
        variable.assign(array)


def _has_optimizer(model: keras.Model) -> bool:
    return model.compiled and getattr(model, "optimizer", None) is not None
