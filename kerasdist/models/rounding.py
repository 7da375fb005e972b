"""How far two ways to compute the same value may differ by rounding alone."""

from __future__ import annotations

import keras
import numpy as np

from kerasdist.models import pure

# Rounding may change sums and means of many numbers by this fraction.
RELATIVE = 1e-4


def as_float64(value: np.ndarray) -> np.ndarray:
    return np.asarray(value, "float64")


def gradient_rounding(model: keras.Model) -> float:
    """The largest `gap` that may be rounding."""
    rounding = rounding_of(model)
    if keras.config.floatx() != "float64":  # Keras computes its losses in it.
        rounding = max(rounding, 1e-5)
    return 1e-9 if rounding < 1e-9 else 30 * rounding if rounding < 1e-3 else 0.2


def rounding_of(model: keras.Model) -> float:
    """The relative rounding error of one number, with room for a few operations."""
    types = {layer.compute_dtype for layer in pure.all_layers(model)}
    if any("16" in name for name in types):
        return 2e-2
    return 1e-14 if types == {"float64"} else 1e-5
