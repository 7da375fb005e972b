"""Chooses the size that images are resized to, from the headers of some of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median

from kerasdist.recipes.own_data.image_files import size_of

# A network learns on two cores in minutes up to this side. Larger images take --image-size.
_MOST = 96
_LEAST = 16
# Sides of images that are scaled are multiples of this, so that pooling divides them.
_STEP = 8


def choose_size(paths: Sequence[Path]) -> tuple[int, int]:
    """`(height, width)`: the size of the images if they share one, and are small; else smaller.

    Otherwise it has about the shape of the middle image.
    """
    sizes = sorted(size for path in paths if (size := size_of(path)))
    if not sizes:
        return _MOST, _MOST
    if sizes[0] == sizes[-1] and max(sizes[0]) <= _MOST:
        return max(sizes[0][0], _STEP), max(sizes[0][1], _STEP)
    height, width = median(h for h, _ in sizes), median(w for _, w in sizes)
    scale = min(1.0, _MOST / max(height, width))
    return _rounded(height * scale), _rounded(width * scale)


def _rounded(side: float) -> int:
    return max(_LEAST, _STEP * round(side / _STEP))


def in_words(paths: Sequence[Path]) -> str:
    """The sizes of images, as width x height."""
    sizes = sorted({size for path in paths if (size := size_of(path))}, key=lambda s: s[0] * s[1])
    if not sizes:
        return "unknown"
    texts = [f"{width} x {height}" for height, width in (sizes[0], sizes[-1])]
    return texts[0] if len(sizes) == 1 else " to ".join(texts)
