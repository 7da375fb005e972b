"""Looks at image files without decoding them: their size, and whether they are complete."""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import IO

from kerasdist.recipes.own_data.orientations import (
    TURNED,
    exif_of_png,
    exif_of_webp,
    orientation_of,
)

_PNG, _JPEG, _GIF, _BMP = b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", (b"GIF87a", b"GIF89a"), b"BM"
_END_OF_PNG, _END_OF_JPEG = b"IEND", b"\xff\xd9"
# Enough for the headers of all formats but JPEG, and for the mark at the end of a file.
_HEAD, _TAIL = 64, 32
# Markers of JPEG without a length, and those of a frame, which has the size.
_ALONE = {0x01, *range(0xD0, 0xD9)}
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_SCAN, _APP1 = 0xDA, 0xE1


def problem(path: Path) -> str | None:
    """What is wrong with an image file, or None. Reads its first and last bytes only."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
            size = os.fstat(file.fileno()).st_size
            if not head:
                return "is empty"
            if format_of(head) is None:
                return f"is not an image: {_instead(head)}"
            return None if _is_complete(file, head, size) else "is cut short"
    except OSError as error:
        return f"cannot be opened: {error.strerror}"


def _instead(head: bytes) -> str:
    text = head.lstrip().lower()
    if text.startswith((b"<!doctype", b"<html")):
        return "it is an HTML page"
    if text.startswith((b"<svg", b"<?xml")):
        return "it is XML or SVG"
    return f"it begins with {head[:8]!r}"


def format_of(head: bytes) -> str | None:
    """The format of an image that begins with these bytes, whatever its suffix says.

    Example:
        >>> format_of(b"GIF89a...")
        'GIF'
    """
    if head.startswith(_PNG):
        return "PNG"
    if head.startswith(_JPEG):
        return "JPEG"
    if head.startswith(_GIF):
        return "GIF"
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WebP"
    return "BMP" if head.startswith(_BMP) else None


def _is_complete(file: IO[bytes], head: bytes, size: int) -> bool:
    kind = format_of(head)
    if kind == "WebP":
        return size >= 8 + int.from_bytes(head[4:8], "little")
    if kind == "BMP":
        # Some programs write 0 for the size.
        return size >= max(int.from_bytes(head[2:6], "little"), 26)
    if kind == "GIF":
        return size > 13  # Its end is not marked reliably; decoding finds what is missing.
    mark = _END_OF_PNG if kind == "PNG" else _END_OF_JPEG
    file.seek(max(0, size - _TAIL))
    if mark in file.read():
        return True
    # A camera may have written something else after the image, or a thumbnail before it.
    file.seek(0)
    content = file.read()
    return content.rfind(mark) > (_start_of_scan(content) if kind == "JPEG" else 0)


def _start_of_scan(content: bytes) -> int:
    for marker, position in _segments(content):
        if marker == _SCAN:
            return position
    return len(content)


def _segments(content: bytes) -> list[tuple[int, int]]:
    """The markers of a JPEG's header, each with the position of its content."""
    found = []
    position = 2
    while position + 4 <= len(content) and content[position] == 0xFF:
        marker = content[position + 1]
        found.append((marker, position + 4))
        if marker == _SCAN:
            break
        has_length = marker not in _ALONE and marker != 0xFF
        step = 2 + int.from_bytes(content[position + 2 : position + 4], "big") if has_length else 2
        position += 1 if marker == 0xFF else step
    return found


def size_of(path: Path) -> tuple[int, int] | None:
    """The height and width that an image's header says, as the camera was held (EXIF).

    None if the header does not say them.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
            kind = format_of(head)
            if kind == "JPEG":
                head += file.read(1 << 16)
            size = _size(kind, head)
            if size is None or _orientation(kind, head, file) not in TURNED:
                return size
            return size[::-1]
    except (OSError, struct.error, IndexError):
        return None


def _size(kind: str | None, head: bytes) -> tuple[int, int] | None:
    width = height = 0
    if kind == "PNG":
        width, height = struct.unpack(">II", head[16:24])
    elif kind == "GIF":
        width, height = struct.unpack("<HH", head[6:10])
    elif kind == "BMP":
        width, height = struct.unpack("<ii", head[18:26])
        height = abs(height)  # Negative if the rows go down.
    elif kind == "WebP":
        height, width = _size_of_webp(head)
    elif kind == "JPEG":
        for marker, position in _segments(head):
            if marker in _FRAMES:
                height, width = struct.unpack(">HH", head[position + 1 : position + 5])
    return (height, width) if height > 0 and width > 0 else None


def _orientation(kind: str | None, head: bytes, file: IO[bytes]) -> int:
    if kind == "PNG":
        return orientation_of(exif_of_png(file))
    if kind == "WebP":
        return orientation_of(exif_of_webp(file))
    if kind == "JPEG":
        for marker, position in _segments(head):
            if marker == _APP1 and head.startswith(b"Exif", position):
                return orientation_of(head[position:])
    return 1


def bits_of_gray_png(path: Path) -> int:
    """The bits per pixel of a gray PNG; 0 for other files."""
    try:
        with open(path, "rb") as file:
            head = file.read(_HEAD)
    except OSError:
        return 0
    is_gray = format_of(head) == "PNG" and len(head) > 25 and head[25] == 0
    return head[24] if is_gray else 0


def _size_of_webp(head: bytes) -> tuple[int, int]:
    form = head[12:16]
    if form == b"VP8X":
        width, height = (int.from_bytes(head[i : i + 3], "little") + 1 for i in (24, 27))
    elif form == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        width, height = (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    else:
        width, height = (n & 0x3FFF for n in struct.unpack("<HH", head[26:30]))
    return height, width
