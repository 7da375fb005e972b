"""How far two ways to compute the same value may differ by rounding alone."""

from __future__ import annotations

import math

import keras
import numpy as np

from kerasdist.models import pure

# Rounding may change sums and means of many numbers by this fraction.
RELATIVE = 1e-4
# In float64, by less than this.
_WIDE = 1e-9


def as_float64(value: np.ndarray) -> np.ndarray:
    return np.asarray(value, "float64")


def rounding_of(model: keras.Model) -> float:
    """The relative rounding error of one number, with room for a few operations."""
    types = {layer.compute_dtype for layer in pure.all_layers(model)}
    if any("16" in name for name in types):
        return 2e-2
    return 1e-14 if types == {"float64"} else 1e-5


def of_outputs(model: keras.Model) -> float:
    """By what fraction of the largest number rounding may change the outputs of a model."""
    rounding = rounding_of(model)
    return _WIDE if rounding < _WIDE else max(RELATIVE, rounding)


def of_gradients(model: keras.Model) -> float:
    """By what fraction of the largest number rounding may change the gradient of a weight.

    Infinity in half precision: where a gradient nearly cancels out, all of it may be rounding. In
    float32 it was up to 2e-5 in the models of `benchmarks/breadth_models.py`.
    """
    rounding = rounding_of(model)
    if rounding < _WIDE and keras.config.floatx() == "float64":  # Keras computes its losses in it.
        return _WIDE
    return math.inf if rounding > RELATIVE else 3e-4
