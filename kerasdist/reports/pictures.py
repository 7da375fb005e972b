"""Writes small PNG pictures for a report, without an image library."""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # Reports are also written without NumPy, if they hold no pictures.
    import numpy as np
    from numpy.typing import ArrayLike

# Dark to light, so that higher values look brighter. Red, green and blue, evenly spaced.
_SHADES = ((12, 12, 40), (70, 24, 110), (168, 44, 96), (233, 110, 60), (252, 232, 164))
# Of larger pictures, rows and columns are left out: a page holds 16 of them.
MOST_PIXELS = 96


def png(pixels: np.ndarray) -> bytes:
    """The bytes of a PNG file, from an array `[height, width]` or `[height, width, 3]`.

    Args:
        pixels: A NumPy array of uint8.
    """
    height, width = pixels.shape[:2]
    colour_type = 2 if pixels.ndim == 3 else 0
    # Each row starts with the number of its filter: 0 for none.
    rows = b"".join(b"\0" + pixels[y].tobytes() for y in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, colour_type, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, content)
        for kind, content in (
            (b"IHDR", header),
            (b"IDAT", zlib.compress(rows, 9)),
            (b"IEND", b""),
        )
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)


def of_image(image: ArrayLike) -> bytes:
    """The PNG of one image `[height, width]` or `[height, width, 1, 3 or 4]`, of any number type.

    Bytes, and numbers from 0 to 1, are shown as they are. Other values are scaled from their lowest
    to their highest.
    """
    import numpy as np

    array = _thinned(np.asarray(image))
    if array.ndim == 3:
        array = array[..., 0] if array.shape[-1] == 1 else array[..., :3]
    if array.dtype == np.uint8:
        return png(np.ascontiguousarray(array))
    return png(np.round(_from_0_to_1(array) * 255).astype(np.uint8))


def of_frames(frames: ArrayLike) -> bytes:
    """The PNG of frames `[time, bands]`: time to the right, the first band at the bottom."""
    import numpy as np

    values = _from_0_to_1(_thinned(np.asarray(frames))).T[::-1]
    shades = np.asarray(_SHADES, np.float64)
    place = values * (len(shades) - 1)
    lower = np.minimum(place.astype(int), len(shades) - 2)
    share = (place - lower)[..., None]
    return png(np.round(shades[lower] * (1 - share) + shades[lower + 1] * share).astype(np.uint8))


def _thinned(array: np.ndarray) -> np.ndarray:
    height, width = array.shape[:2]
    return array[:: -(-height // MOST_PIXELS), :: -(-width // MOST_PIXELS)]


def _from_0_to_1(array: np.ndarray) -> np.ndarray:
    import numpy as np

    values = np.nan_to_num(np.asarray(array, np.float64), posinf=0.0, neginf=0.0)
    low, high = float(values.min()), float(values.max())
    if array.dtype.kind == "f" and low >= 0 and high <= 1 and high > 0.5:
        return values
    return (values - low) / (high - low) if high > low else np.zeros_like(values)
