"""Looks for images of 16 bits per pixel that use few of them, as those of 12-bit cameras do."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kerasdist.recipes.own_data.image_files import bits_of_gray_png

# So many files are decoded, evenly spread.
_MOST = 8
# Below this value, fewer than a quarter of the 256 gray levels are left.
_DARK = 1 << 14


def dark_16_bits(paths: Sequence[Path]) -> str | None:
    """What is lost of images of 16 bits whose values are small; None if there are none."""
    wide = [path for path in paths if bits_of_gray_png(path) == 16]
    highest = [_highest(path) for path in wide[:: -(-len(wide) // _MOST) or 1]]
    most = max((value for value in highest if value is not None), default=_DARK)
    if most >= _DARK:
        return None
    times = 65535 // max(1, most)
    return (
        f"images of 16 bits with values up to {most:,}: the upper 8 bits are used, so "
        f"{(most >> 8) + 1} of 256 gray levels are left; save them multiplied by {times}"
    )


def _highest(path: Path) -> int | None:
    from PIL import Image

    try:
        with Image.open(path) as image:
            return int(np.asarray(image).max())
    except (
        OSError,
        SyntaxError,
        ValueError,
        Image.DecompressionBombError,
    ):  # Reading it says what is wrong with it.
        return None
