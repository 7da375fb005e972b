"""Cuts texts into words. `raw_model` does exactly the same in TensorFlow, for exported files.

Letters become lower case, apostrophes vanish (don't: dont), and everything but letters and digits
separates words. Chinese and Japanese are written without blanks: each character is a word.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence

import numpy as np

APOSTROPHES = "'’"
# The ranges of characters that are words of their own, also for a regular expression.
SINGLE = ((0x3040, 0x30FF), (0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF))


class _Characters(dict[int, str]):
    """What becomes of each character, found when it comes first."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if character in APOSTROPHES:
            result = ""
        elif any(first <= code <= last for first, last in SINGLE):
            result = f" {character} "
        else:
            is_kept = unicodedata.category(character)[0] in "LMN"
            result = character if is_kept else " "
        self[code] = result
        return result


_CHARACTERS = _Characters()


def words_of(text: str) -> list[str]:
    """The words of a text.

    Example:
        >>> words_of("Don't panic: it's 42!")
        ['dont', 'panic', 'its', '42']
    """
    return [word for word in text.lower().translate(_CHARACTERS).split(" ") if word]


def split_words(texts: Sequence[str], most: int) -> tuple[list[str], np.ndarray]:
    """All words of several texts, at most `most` of each, and how many each text has."""
    words: list[str] = []
    lengths = np.empty(len(texts), np.int64)
    for i, text in enumerate(texts):
        own = words_of(text)[:most]
        lengths[i] = len(own)
        words += own
    return words, lengths
