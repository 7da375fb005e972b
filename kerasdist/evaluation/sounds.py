"""The sounds of examples as small WAV files, for the players on a report."""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np

from kerasdist.evaluation.drawings import encoded
from kerasdist.recipes import extras
from kerasdist.recipes.recipe import Recipe

# A page holds up to 16 sounds; together they stay below 2 MB.
MOST_SECONDS = 3.0
_HIGHEST_RATE = 16_000


def add_to(evaluation: dict[str, Any], recipe: Recipe | None) -> None:
    """Adds "wav" to the worst and best examples, if the recipe can read their sounds."""
    found = [example for kind in ("worst", "best") for example in evaluation[kind]]
    clips = extras.read_sounds(recipe, "validation", [example["position"] for example in found])
    for example, clip in zip(found, clips, strict=False):
        example["wav"] = encoded(wav(*clip))


def wav(samples: np.ndarray, rate: int) -> bytes:
    """A WAV file of 16 bits: at most `MOST_SECONDS`, and 16,000 samples per second.

    Args:
        samples: `[samples]` or `[samples, channels]`, of which the mean is taken; whole numbers of
            16 bits, or floats from -1 to 1.
        rate: Samples per second.

    Example:
        >>> import numpy as np
        >>> len(wav(np.zeros(800, "int16"), 8000))
        1644
    """
    sound = np.asarray(samples)
    is_float = sound.dtype.kind == "f"
    sound = np.nan_to_num(sound.astype(np.float64)) * (32767 if is_float else 1)
    if sound.ndim == 2:
        sound = sound.mean(axis=1)
    sound = sound[: int(MOST_SECONDS * rate)]
    every = -(-rate // _HIGHEST_RATE)
    if every > 1:  # Means of neighbours: without them, high tones would sound as low ones.
        sound = sound[: len(sound) // every * every].reshape(-1, every).mean(axis=1)
    file = io.BytesIO()
    with wave.open(file, "wb") as clip:
        clip.setparams((1, 2, rate // every, 0, "NONE", ""))
        clip.writeframes(np.clip(np.round(sound), -32768, 32767).astype("<i2").tobytes())
    return file.getvalue()
