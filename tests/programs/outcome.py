"""What a program leaves behind: the weights and numbers of its globals, compared by name."""

import hashlib
from numbers import Number

import keras
import numpy as np

TOLERANCE = 1e-9


def collect(variables):
    """Name → array for every model, history and number among a program's globals.

    Models come by the order of their weights: names of variables depend on what ran before.
    """
    found = {}
    for name, value in sorted(variables.items()):
        if not name.startswith("_"):
            found.update(_flat(name, value))
    return found


def _flat(name, value):
    if isinstance(value, keras.Model):
        for index, weight in enumerate(value.weights):
            yield f"weights/{name}/{index:03}", keras.ops.convert_to_numpy(weight)
    elif isinstance(getattr(value, "history", None), dict):  # The History of a `fit`.
        for key, values in value.history.items():
            yield f"{name}/history/{key}", np.asarray(values)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _flat(f"{name}/{key}", part)
    elif isinstance(value, (list, tuple)) and not all(isinstance(v, Number) for v in value):
        for index, part in enumerate(value):
            yield from _flat(f"{name}/{index}", part)
    elif isinstance(value, (Number, np.ndarray, list, tuple)) or keras.ops.is_tensor(value):
        array = np.asarray(value)
        if array.dtype.kind in "biuf":
            yield name, array


def sha256_of_weights(values):
    """One hash for all weights: equal only if every bit is."""
    digest = hashlib.sha256()
    for name, array in sorted(values.items()):
        if name.startswith("weights/"):
            digest.update(f"{name} {array.dtype} {array.shape}".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def largest_difference(values, reference):
    """`(difference, name)` where two outcomes differ most, relative to max(1, |reference|).

    Infinite where a name is in one of them only, shapes differ, or only one is not finite.
    """
    alone = sorted(set(values) ^ set(reference))
    if alone:
        return float("inf"), f"{alone[0]} (only in one of the two)"
    worst = (0.0, "")
    for name, expected in reference.items():
        worst = max(worst, (_difference(values[name], expected), name))
    return worst


def _difference(array, expected):
    if array.shape != expected.shape:
        return float("inf")
    array, expected = array.astype("float64"), expected.astype("float64")
    with np.errstate(invalid="ignore"):
        apart = np.abs(array - expected) / np.maximum(1, np.abs(expected))
    same = (array == expected) | (np.isnan(array) & np.isnan(expected))
    apart = np.where(same, 0, np.where(np.isnan(apart), np.inf, apart))
    return float(apart.max(initial=0))


def same_bits(values, reference):
    """Whether two outcomes have the same names and every number of them the same bits."""
    return set(values) == set(reference) and all(
        array.dtype == reference[name].dtype
        and array.shape == reference[name].shape
        and array.tobytes() == reference[name].tobytes()
        for name, array in values.items()
    )
