"""Chooses the rate and the length that sounds are read with, from the headers of some of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from kerasdist.recipes.own_data.sound_files import BadSoundError, Sound, read_header

# Speech needs no more, and more takes longer.
_MOST_RATE, _MOST_SECONDS = 16_000, 10.0
# A few sounds may be longer than the length: they are cut.
_WHOLE = 0.95


def headers(paths: Sequence[Path]) -> list[Sound]:
    """The headers of files; without those of files that cannot be read."""
    found = []
    for path in paths:
        try:
            found.append(read_header(path))
        except BadSoundError:
            continue
    return found


def choose_rate(sounds: Sequence[Sound]) -> int:
    """The most frequent rate, but at most 16,000 samples per second."""
    counts = Counter(sound.rate for sound in sounds)
    most = max(counts, key=lambda rate: (counts[rate], rate), default=_MOST_RATE)
    return min(most, _MOST_RATE)


def choose_seconds(sounds: Sequence[Sound]) -> float:
    """The length of nearly all sounds, rounded up to a tenth of a second, but at most 10."""
    lengths = sorted(sound.seconds for sound in sounds)
    if not lengths:
        return 1.0
    long = lengths[math.ceil(_WHOLE * len(lengths)) - 1]
    # 0.1 is a little more than a tenth for a computer.
    return min(_MOST_SECONDS, math.ceil(10 * long - 1e-6) / 10)


def in_words(sounds: Sequence[Sound]) -> str:
    """The lengths, rates, channels and bits of sounds."""
    if not sounds:
        return "unknown"
    rates = _range([sound.rate for sound in sounds], "{:,}")
    lengths = _range([sound.seconds for sound in sounds], "{:.3g}")
    bits = _range([sound.bits for sound in sounds], "{}")
    channels = sorted({sound.channels for sound in sounds})
    mono = ", mono" if channels == [1] else ", stereo" if channels == [2] else ""
    return f"{lengths} s, {rates} Hz, {bits} bits{mono}"


def _range(values: Sequence[float], form: str) -> str:
    first, last = form.format(min(values)), form.format(max(values))
    return first if first == last else f"{first} to {last}"
