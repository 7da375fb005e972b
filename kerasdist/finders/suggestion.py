"""Which learning rate a range test suggests, and why."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

# How far the running mean reaches back: about ten steps.
_MEMORY = 0.9
# The running mean may rise by so many times what it was at the beginning.
_TOO_MUCH = 3.0
# The width of the smoothing of the curve, as a part of all steps.
_WIDTH = 0.03
# The rate with the lowest loss is nearly too much: stay below this part of it.
_BELOW_LOWEST = 1 / 3
# Easy data loses most of its loss at rates that are far too low. If the middle of the fall is below
# the first part of the rate at which nearly all of it is reached, the second part is suggested.
_FAR_BELOW, _BELOW_NEARLY, _NEARLY = 1 / 20, 1 / 10, 0.98
# A smaller part of the loss is no fall.
_SMALL = 1e-3


@dataclass
class Divergence:
    """Decides while the losses come in whether the rate is too high by now.

    Example:
        >>> watch = Divergence()
        >>> [watch.is_reached(loss) for loss in (2.0, 1.0, 1.5, 90.0)]
        [False, False, False, True]
    """

    mean: float = 0.0
    weight: float = 0.0
    first: float = math.nan
    best: float = math.inf

    def is_reached(self, loss: float) -> bool:
        """Takes the loss of a step into account."""
        self.mean = _MEMORY * self.mean + (1 - _MEMORY) * loss
        self.weight = _MEMORY * self.weight + 1 - _MEMORY
        smoothed = self.mean / self.weight
        if math.isnan(self.first):
            self.first = loss
        self.best = min(self.best, smoothed)
        return smoothed - self.best > _TOO_MUCH * max(abs(self.best), self.first - self.best)


def smooth(losses: Sequence[float]) -> np.ndarray:
    """The losses without their noise: a weighted mean of the steps around each step.

    It looks both ways, so that the curve is not late, and not above twice the first losses: what
    diverges would hide everything else.

    Example:
        >>> smooth([1.0, 1.0, 1.0]).tolist()
        [1.0, 1.0, 1.0]
    """
    values = np.asarray(losses, float)
    start = float(np.median(values[: max(1, len(values) // 10)]))
    values = np.minimum(values, start + max(abs(start), start - float(values.min())))
    steps = np.arange(len(values))
    width = max(1.0, _WIDTH * len(values))
    weights = np.exp(-0.5 * ((steps[:, None] - steps) / width) ** 2)
    smoothed: np.ndarray = weights @ values / weights.sum(axis=1)
    return smoothed


def suggest(rates: Sequence[float], losses: Sequence[float]) -> tuple[float | None, str]:
    """`(the suggested learning rate, why)`; None if no rate made the loss fall.

    Example:
        >>> rates = [10.0 ** (i / 10 - 5) for i in range(40)]
        >>> suggest(rates, [2.0 - 1.5 / (1 + (0.01 / rate) ** 2) for rate in rates])[0]
        0.01
    """
    values, curve, raw = np.asarray(rates, float), smooth(losses), np.asarray(losses, float)
    lowest = int(np.argmin(curve))
    start = float(np.median(curve[: max(1, len(curve) // 5)]))
    early = slice(0, max(2, lowest))
    fall, noise = start - float(curve[lowest]), float(np.std(raw[early] - curve[early]))
    # Not where the curve is steepest: what is left of the noise has slopes, too. None: it began
    # low, and rose before the rate could have any effect, as with batches that differ much.
    above = np.flatnonzero(curve[: lowest + 1] > start - fall / 2)
    if lowest < 2 or fall <= max(noise, _SMALL * abs(start)) or not len(above):
        return None, "the loss fell at no rate by more than it varies between steps"
    middle, best = float(values[int(above[-1]) + 1]), float(values[lowest])
    after = "" if lowest == len(curve) - 1 else ", then rises"
    nearly = float(values[int(np.argmax(curve <= start - _NEARLY * fall))])
    if middle < nearly * _FAR_BELOW:
        return _rounded(nearly * _BELOW_NEARLY), (
            f"a tenth of {_rounded(nearly):g}, where the loss is nearly lowest{after}"
        )
    if middle <= best * _BELOW_LOWEST:
        return _rounded(middle), (
            f"half of the fall is reached there; lowest at {_rounded(best):g}{after}"
        )
    return _rounded(best * _BELOW_LOWEST), (
        f"a third of {_rounded(best):g}, where the loss is lowest{after}"
    )


def _rounded(value: float) -> float:
    """Two digits: the test is not more precise."""
    return float(f"{value:.2g}")
