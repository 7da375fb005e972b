"""Makes texts of two kinds, to try the recipe without data."""

from __future__ import annotations

import functools
import random
import tempfile
from pathlib import Path

NUM_MADE = 300
CLASSES = {
    "complaint": ("late", "broken", "rude", "refund", "never", "awful"),
    "praise": ("friendly", "quick", "perfect", "thanks", "again", "lovely"),
}
COMMON = ("the", "a", "order", "box", "came", "with", "my", "it", "was", "and", "we", "to", "shop")


@functools.cache
def _folder() -> tempfile.TemporaryDirectory:
    return tempfile.TemporaryDirectory(prefix="kerasdist-example-")  # Removed when Python ends.


def made_folder() -> str:
    """The path of a folder with one folder of texts per class."""
    path = Path(_folder().name) / "letters"
    if not path.is_dir():
        numbers = random.Random(0)
        for name, own in CLASSES.items():
            (path / name).mkdir(parents=True)
            for i in range(NUM_MADE):
                words = numbers.choices(COMMON, k=numbers.randint(8, 30))
                words += numbers.choices(own, k=2)
                numbers.shuffle(words)
                (path / name / f"{i:03}.txt").write_text(" ".join(words).capitalize() + ".")
    return str(path)
