"""Reads spoken digits from WAV files, and says what is wrong with a bad file."""

from __future__ import annotations

import re
import wave
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from kerasdist import KerasdistError

RATE = 8000
NAME = re.compile(r"(?P<digit>\d)_(?P<speaker>[^_]+)_(?P<index>\d+)\.wav", re.IGNORECASE)


@dataclass(frozen=True)
class Clip:
    """A recording: the digit, the speaker, the number of the recording, and the samples."""

    digit: int
    speaker: str
    index: int
    samples: np.ndarray


class BadClipError(KerasdistError):
    """The file is not a clip of the data set; the message says why."""


def parse_name(path: Path) -> tuple[int, str, int]:
    """Returns `(digit, speaker, index)` from the name of a file.

    Example:
        >>> parse_name(Path("7_jackson_32.wav"))
        (7, 'jackson', 32)
    """
    match = NAME.fullmatch(path.name)
    if match is None:
        raise _bad(path, "whose name does not tell its digit", "a name such as 7_jackson_32.wav")
    return int(match["digit"]), match["speaker"], int(match["index"])


def read_clip(path: Path) -> Clip:
    """Reads a recording and its name."""
    return Clip(*parse_name(path), read_samples(path))


def read_samples(path: Path) -> np.ndarray:
    """Reads the samples of a WAV file, as int16.

    Example:
        >>> import tempfile
        >>> with tempfile.NamedTemporaryFile(suffix=".wav") as file:
        ...     with wave.open(file.name, "wb") as clip:
        ...         clip.setparams((1, 2, RATE, 0, "NONE", ""))
        ...         clip.writeframes(np.arange(3, dtype="<i2").tobytes())
        ...     read_samples(Path(file.name)).tolist()
        [0, 1, 2]
    """
    try:
        size = path.stat().st_size
        if not size:
            raise _bad(path, "which is empty", "a complete WAV file")
        with wave.open(str(path), "rb") as clip:
            channels, width, rate, frames, *_ = clip.getparams()
            content = clip.readframes(frames)
    except (wave.Error, EOFError, OSError) as error:
        reason = f"which cannot be read ({str(error) or 'it ends too early'})"
        raise _bad(path, reason, "a complete WAV file") from error
    if channels != 1:
        raise _bad(path, f"which has {channels} channels", "one channel")
    if width != 2:
        raise _bad(path, f"which has samples of {8 * width} bits", "16 bits")
    if rate != RATE:
        raise _bad(path, f"which has {rate} samples per second", f"{RATE}")
    if not frames:
        raise _bad(path, "which has no samples", "at least one")
    if len(content) != 2 * frames:
        found = f"which is cut short: {len(content) // 2} of {frames} samples"
        raise _bad(path, found, "a complete WAV file")
    return np.frombuffer(content, "<i2").astype(np.int16)


def _bad(path: Path, found: str, expected: str) -> BadClipError:
    return BadClipError(
        f"Received the file {str(path)!r}, {found}. Expected {expected}. Convert or replace it, or "
        "skip bad files with `skip_bad`."
    )
