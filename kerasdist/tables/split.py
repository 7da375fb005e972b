"""Divides the rows of a table into a training and a validation part."""

from __future__ import annotations

import numpy as np

from kerasdist.errors import KerasdistError


def validation_rows(
    num_rows: int, labels: np.ndarray | None, share: float, seed: int
) -> np.ndarray:
    """Which rows are for validation: a function of (seed, number of rows, labels) alone.

    With labels, each class gives the same share of its rows; a class with one row gives none.

    Example:
        >>> import numpy as np
        >>> chosen = validation_rows(10, np.array([0] * 5 + [1] * 5), 0.2, seed=0)
        >>> int(chosen[:5].sum()), int(chosen[5:].sum())
        (1, 1)
    """
    if num_rows < 2:
        rows = "1 row" if num_rows else "no rows"
        raise KerasdistError(
            f"The table has {rows} to learn from. Expected at least two, so that one of them can "
            "be for validation. Add rows, and values of the target."
        )
    random = np.random.default_rng([seed, num_rows])
    chosen = np.zeros(num_rows, bool)
    if share == 0:
        return chosen
    groups = [np.arange(num_rows)]
    if labels is not None:
        groups = [np.flatnonzero(labels == label) for label in np.unique(labels)]
    for group in groups:
        count = max(round(share * len(group)), 1 if len(group) >= 4 else 0)
        chosen[random.permutation(group)[: min(count, len(group) - 1)]] = True
    if not chosen.any():  # Many classes with a row or two each.
        chosen[random.permutation(num_rows)[: max(1, round(share * num_rows))]] = True
    return chosen
