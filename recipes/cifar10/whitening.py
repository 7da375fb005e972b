"""The filters of a frozen first layer, which whitens 2x2 patches of CIFAR-10 images."""

from __future__ import annotations

import numpy as np

# Computed from the 50,000 training images: mean and deviation of each channel, and the covariance
# of 2x2 patches of standardized pixels (rows, columns, channels; the lower triangle).
# `tests/recipes/test_cifar10.py` checks them.
MEAN = (125.307, 122.950, 113.865)
DEVIATION = (62.993, 62.089, 66.705)
_COVARIANCE = """
    .99675
    .90799 .99814
    .78092 .90633 .99889
    .92485 .84011 .72252 .99601
    .84001 .92595 .84348 .90725 .99734
    .72247 .84354 .93797 .78017 .90552 .99800
    .90875 .82642 .70814 .85731 .77793 .66684 .98756
    .82253 .90904 .82510 .77442 .85750 .78049 .89773 .98558
    .70693 .82747 .91936 .66592 .78280 .87590 .76965 .89142 .98093
    .85655 .77735 .66628 .90799 .82565 .70737 .91572 .82990 .71131 .98682
    .77366 .85689 .77989 .82176 .90821 .82427 .82980 .91347 .82865 .89698 .98477
    .66528 .78231 .87536 .70616 .82664 .91845 .71125 .82871 .92011 .76889 .89061 .98004
"""
# Keeps directions that are almost noise from being amplified.
_SMALLEST = 5e-4


def covariance() -> np.ndarray:
    """Returns the covariance as a 12 by 12 matrix.

    Example:
        >>> covariance().shape
        (12, 12)
    """
    matrix = np.zeros((12, 12))
    matrix[np.tril_indices(12)] = [float(number) for number in _COVARIANCE.split()]
    return matrix + np.tril(matrix, -1).T


def filters() -> np.ndarray:
    """Returns 24 filters of 2x2 pixels: 12 whitening directions, and the negative of each.

    Example:
        >>> filters().shape
        (2, 2, 3, 24)
    """
    variances, directions = np.linalg.eigh(covariance())
    # `eigh` may return either sign of a direction: fix it, so that it is the same everywhere.
    directions *= np.sign(directions[np.abs(directions).argmax(axis=0), range(12)])
    scaled = directions / np.sqrt(variances + _SMALLEST)
    return np.concatenate([scaled, -scaled], axis=1).reshape(2, 2, 3, 24).astype(np.float32)
