"""Reads from the header of an image how the camera was held: its EXIF orientation."""

from __future__ import annotations

import struct
from typing import IO

_TAG, _SHORT = 0x0112, 3
# Of the eight orientations, these swap width and height.
TURNED = (5, 6, 7, 8)
# Larger blocks of EXIF data hold thumbnails, which come after the orientation.
_MOST = 1 << 16


def orientation_of(exif: bytes) -> int:
    """The orientation from 1 to 8 in EXIF data; 1 without one.

    Example:
        >>> entry = struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0)
        >>> orientation_of(b"II*\\0" + struct.pack("<IH", 8, 1) + entry)
        6
    """
    exif = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return 1
    try:
        (start,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, start)
        for i in range(count):
            tag, kind, _, value = struct.unpack_from(f"{order}HHIH", exif, start + 2 + 12 * i)
            if (tag, kind) == (_TAG, _SHORT):
                return int(value) if 1 <= value <= 8 else 1
    except struct.error:
        pass
    return 1


def exif_of_png(file: IO[bytes]) -> bytes:
    """The EXIF data of a PNG; empty without any. It may come after the pixels."""
    position = 8
    while head := _head(file, position):
        length, name = struct.unpack(">I4s", head)
        if name == b"eXIf":
            return file.read(min(length, _MOST))
        position += 12 + length
    return b""


def exif_of_webp(file: IO[bytes]) -> bytes:
    """The EXIF data of a WebP; empty without any. It comes after the pixels."""
    position = 12
    while head := _head(file, position):
        name, length = struct.unpack("<4sI", head)
        if name == b"EXIF":
            return file.read(min(length, _MOST))
        position += 8 + length + length % 2
    return b""


def _head(file: IO[bytes], position: int) -> bytes:
    """The name and the length of the chunk at a position; empty at the end of the file."""
    file.seek(position)
    head = file.read(8)
    return head if len(head) == 8 else b""
