"""Reads the headers of WAV files: rate, channels, type and number of samples."""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_COMPRESSED = {2: "ADPCM", 6: "A-law", 7: "mu-law", 17: "ADPCM", 49: "GSM", 80: "MPEG", 85: "MP3"}
# A header with more before the samples than this is not read.
_MOST_HEADER = 1 << 20
_UNKNOWN_SIZE = 0xFFFFFFFF


class BadSoundError(Exception):
    """The file cannot be used. The message says why: "is empty"."""


@dataclass(frozen=True)
class Sound:
    """The header of a WAV file.

    Attributes:
        rate: Samples per second.
        channels: The number of channels.
        bits: The bits of a sample: 8, 16, 24 or 32, of floats 32 or 64.
        is_float: Whether samples are floats.
        start: The position of the first sample in the file.
        length: The number of samples per channel.
    """

    rate: int
    channels: int
    bits: int
    is_float: bool
    start: int
    length: int

    @property
    def seconds(self) -> float:
        return self.length / self.rate


def problem(path: Path) -> str | None:
    """What is wrong with a WAV file, or None. Reads its header only."""
    try:
        read_header(path)
    except BadSoundError as error:
        return str(error)
    return None


def read_header(path: Path) -> Sound:
    """The header of a WAV file. Raises `BadSoundError` if its samples cannot be read."""
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            head = file.read(4096)
            sound = _parsed(head, size)
            if sound is None and size > len(head):
                sound = _parsed(head + file.read(_MOST_HEADER), size)
    except OSError as error:
        raise BadSoundError(f"cannot be opened: {error.strerror}") from error
    if sound is None:
        raise BadSoundError("is cut short: it has no samples")
    return sound


def _parsed(head: bytes, size: int) -> Sound | None:
    """The header; None if `head` ends before the samples."""
    if not head:
        raise BadSoundError("is empty")
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        raise BadSoundError(f"is not a WAV file: it begins with {head[:4]!r}")
    form: tuple[int, int, int, int] | None = None
    position = 12
    while position + 8 <= len(head):
        name, length = head[position : position + 4], _number(head, position + 4, 4)
        position += 8
        if name == b"fmt " and position + 16 <= len(head):
            form = _format(head[position : position + length])
        if name == b"data":
            if form is None:
                raise BadSoundError("is not a complete WAV file: its format is missing")
            return _sound(form, position, length, size)
        position += length + length % 2
    return None


def _format(chunk: bytes) -> tuple[int, int, int, int]:
    """`(kind, channels, rate, bits)`."""
    kind, channels, rate, _, _, bits = struct.unpack("<HHIIHH", chunk[:16])
    if kind == _EXTENSIBLE and len(chunk) >= 26:
        kind = _number(chunk, 24, 2)
    return kind, channels, rate, bits


def _sound(form: tuple[int, int, int, int], start: int, num_bytes: int, size: int) -> Sound:
    kind, channels, rate, bits = form
    if kind not in (_PCM, _FLOAT):
        raise BadSoundError(
            f"is compressed ({_COMPRESSED.get(kind, f'format {kind}')}), not plain samples"
        )
    if bits not in ((32, 64) if kind == _FLOAT else (8, 16, 24, 32)) or not channels or not rate:
        raise BadSoundError(f"has {channels} channels of {bits} bits, {rate} samples per second")
    if num_bytes in (0, _UNKNOWN_SIZE):  # A program that could not go back to write the size.
        num_bytes = size - start
    if num_bytes > size - start:
        raise BadSoundError("is cut short")
    length = num_bytes // (channels * bits // 8)
    if not length:
        raise BadSoundError("has no samples")
    return Sound(rate, channels, bits, kind == _FLOAT, start, length)


def _number(content: bytes, start: int, length: int) -> int:
    return int.from_bytes(content[start : start + length], "little")
