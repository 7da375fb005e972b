"""How good a classifier's probabilities are: calibration, and precision against recall."""

from __future__ import annotations

from typing import Any

import numpy as np

NUM_BINS = 10
# A page cannot show more points than this.
_MOST_POINTS = 200


def calibration(answered: np.ndarray, is_right: np.ndarray) -> dict[str, Any]:
    """How often answers are right, by their probability, in equal intervals.

    Args:
        answered: The probability of each example's answer.
        is_right: Whether each answer is right.

    Returns:
        Rows of (lowest, highest probability, share of right answers, examples), and the error: by
        how much probability and share differ, on average over the examples.

    Example:
        >>> import numpy as np
        >>> found = calibration(np.array([0.95, 0.95]), np.array([True, False]))
        >>> found["bins"][-1], round(found["error"], 2)
        ([0.9, 1.0, 0.5, 2], 0.45)
    """
    place = np.clip((answered * NUM_BINS).astype(int), 0, NUM_BINS - 1)
    counts = np.bincount(place, minlength=NUM_BINS)
    right = np.bincount(place, weights=is_right, minlength=NUM_BINS)
    sums = np.bincount(place, weights=answered, minlength=NUM_BINS)
    rows = [
        [i / NUM_BINS, (i + 1) / NUM_BINS, float(right[i] / max(counts[i], 1)), int(counts[i])]
        for i in range(NUM_BINS)
    ]
    error = float(np.abs(right - sums).sum() / max(counts.sum(), 1))
    return {"bins": rows, "error": error}


def precision_recall(scores: np.ndarray, is_positive: np.ndarray) -> dict[str, Any] | None:
    """Precision at each recall, as the probability above which an answer counts is lowered.

    Args:
        scores: The probability of the positive class.
        is_positive: Whether each example is of that class.

    Returns:
        Points (recall, precision), the average precision (precision, weighted by the recall that
        each threshold adds) and the share of positive examples; None without examples of both
        classes.

    Example:
        >>> import numpy as np
        >>> found = precision_recall(np.array([0.9, 0.8, 0.1]), np.array([True, False, True]))
        >>> found["points"], round(found["average_precision"], 3)
        ([[0.5, 1.0], [0.5, 0.5], [1.0, 0.6667]], 0.833)
    """
    total = int(is_positive.sum())
    if not 0 < total < len(scores):
        return None
    order = np.argsort(-scores, kind="stable")
    sorted_scores, hits = scores[order], np.cumsum(is_positive[order])
    # Examples with equal scores pass a threshold together.
    last = np.append(np.flatnonzero(np.diff(sorted_scores)), len(scores) - 1)
    recall, precision = hits[last] / total, hits[last] / (last + 1)
    added = np.diff(recall, prepend=0.0)
    chosen = np.unique(np.linspace(0, len(last) - 1, _MOST_POINTS).round().astype(int))
    points = np.stack([recall[chosen], precision[chosen]], axis=1)
    return {
        "points": np.round(points, 4).tolist(),
        "average_precision": float(np.sum(added * precision)),
        "share": total / len(scores),
    }
