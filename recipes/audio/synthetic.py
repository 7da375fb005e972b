"""Makes synthetic sounds from a seed: ten patterns of random length and pitch, with noise."""

from __future__ import annotations

import numpy as np

from .recordings import RATE

NUM_CLASSES = 10


def make_synthetic(num_clips: int, seed) -> tuple[list[np.ndarray], np.ndarray]:
    """Returns int16 clips of 0.25 to 0.75 seconds, and their classes.

    The class is the way in which pitch and loudness change. Length, pitch, loudness, overtones and
    noise are random, so none of them tells the class.

    Args:
        num_clips: The number of clips. All classes have the same share.
        seed: A seed for `numpy.random.default_rng`.

    Example:
        >>> clips, labels = make_synthetic(20, seed=0)
        >>> len(clips), labels.shape, clips[0].dtype
        (20, (20,), dtype('int16'))
    """
    random = np.random.default_rng(seed)
    labels = random.permutation(np.arange(num_clips) % NUM_CLASSES)
    return [_sound(int(label), random) for label in labels], labels


def _sound(label: int, random: np.random.Generator) -> np.ndarray:
    num = int(random.uniform(0.25, 0.75) * RATE)
    place = np.linspace(0, 1, num)
    pitch, loudness = _pattern(label, place)
    phase = 2 * np.pi * np.cumsum(random.uniform(250, 500) * pitch) / RATE
    overtones = random.uniform(0.1, 1, 4) / np.arange(1, 5)
    tone = sum(s * np.sin((i + 1) * phase) for i, s in enumerate(overtones)) / overtones.sum()
    # Fade in and out, so that no click marks the start and the end.
    fade = np.minimum(1, 20 * np.minimum(place, 1 - place))
    sound = tone * loudness * fade + random.normal(0, random.uniform(0.02, 0.15), num)
    return np.clip(sound * random.uniform(2000, 12000), -32768, 32767).astype(np.int16)


def _pattern(label: int, place: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The pitch (as a factor) and the loudness at each place of the clip."""
    steady = np.ones_like(place)
    late = place > 0.5
    return {
        0: (steady, steady),
        1: (1 + place, steady),  # rises by an octave
        2: (2 - place, steady),  # falls by an octave
        3: (1 + np.minimum(2 * place, 2 - 2 * place), steady),  # rises and falls
        4: (2 - np.minimum(2 * place, 2 - 2 * place), steady),  # falls and rises
        5: (np.where(late, 1.5, 1.0), steady),  # jumps up
        6: (np.where(late, 1.0, 1.5), steady),  # jumps down
        7: (steady, (np.abs(place - 0.5) > 0.12).astype(float)),  # two parts
        8: (steady, (place * 6 % 2 < 1).astype(float)),  # three parts
        9: (1 + 0.25 * np.sin(2 * np.pi * 4 * place), steady),  # wavers
    }[label]
