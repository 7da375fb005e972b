"""How far a regression's predictions are from their targets."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.evaluation.classes import loss_function

# With more outputs, each would be too small a part of the answer to look at.
MOST_TARGETS = 4
_MOST_POINTS = 400
_NUM_BINS = 30
# Losses whose outputs are not in the unit of their targets.
_OF_CLASSES = {
    keras.losses.binary_crossentropy,
    keras.losses.binary_focal_crossentropy,
    keras.losses.categorical_crossentropy,
    keras.losses.categorical_hinge,
    keras.losses.hinge,
    keras.losses.squared_hinge,
    keras.losses.sparse_categorical_crossentropy,
    keras.losses.kl_divergence,
    keras.losses.cosine_similarity,
}


def num_targets(model: keras.Model, outputs: Any, targets: Any) -> int:
    """How many numbers a regression predicts per example; 0 if a model is not a regression.

    Args:
        model: A compiled model that is not a classifier.
        outputs: `tf.TensorSpec` of its outputs.
        targets: `tf.TensorSpec` of its targets.
    """
    for spec in (outputs, targets):
        if not isinstance(spec, tf.TensorSpec) or spec.shape.rank not in (1, 2):
            return 0
    widths = [1 if spec.shape.rank == 1 else spec.shape[1] for spec in (outputs, targets)]
    is_same = widths[0] is not None and widths[0] == widths[1] <= MOST_TARGETS
    is_number = targets.dtype.is_floating or targets.dtype.is_integer
    if not is_same or not is_number or loss_function(model)[0] in _OF_CLASSES:
        return 0
    return int(widths[0])


def measured(name: str, true: np.ndarray, predicted: np.ndarray) -> dict[str, Any]:
    """The errors of one target, and what its two plots show.

    Example:
        >>> import numpy as np
        >>> found = measured("y", np.array([1.0, 2.0]), np.array([1.5, 2.0]))
        >>> found["mae"], found["r2"], found["points"]
        (0.25, 0.5, [[1.0, 1.5], [2.0, 2.0]])
    """
    known = np.isfinite(true) & np.isfinite(predicted)
    true, predicted = true[known], predicted[known]
    error = predicted - true
    if not len(error):
        return {"name": name, "examples": 0}
    spread = float(np.sum((true - true.mean()) ** 2))
    chosen = np.unique(np.linspace(0, len(true) - 1, _MOST_POINTS).round().astype(int))
    counts, edges = np.histogram(error, bins=_NUM_BINS)
    points = np.stack([true[chosen], predicted[chosen]], axis=1)
    return {
        "name": name,
        "examples": len(true),
        "mae": float(np.abs(error).mean()),
        "rmse": float(np.sqrt(np.mean(error**2))),
        # Without a spread, there is nothing to explain.
        "r2": 1 - float(np.sum(error**2)) / spread if spread else None,
        "points": points.tolist(),
        "residuals": {"edges": edges.tolist(), "counts": counts.tolist()},
    }
