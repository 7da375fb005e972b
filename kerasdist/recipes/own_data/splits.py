"""Decides which files are for training, for validation and for testing."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

from kerasdist.errors import KerasdistError

TRAIN, VALIDATION, TEST = "train", "validation", "test"
SPLITS = (TRAIN, VALIDATION, TEST)
# The usual names of the folders of each split, in lower case.
FOLDER_NAMES = {
    TRAIN: ("train", "training"),
    VALIDATION: ("val", "valid", "validation", "dev"),
    TEST: ("test", "testing"),
}
_SPLIT_OF = {name: split for split, names in FOLDER_NAMES.items() for name in names}


def split_folders(names: Iterable[str]) -> dict[str, str] | None:
    """The folder of each split, if these folders are splits; None if they are classes.

    Example:
        >>> split_folders(["Train", "val"])
        {'train': 'Train', 'validation': 'val'}
        >>> split_folders(["train", "bus"]) is None
        True
    """
    names = list(names)
    known = [_SPLIT_OF.get(name.lower()) for name in names]
    if TRAIN not in known or None in known:
        return None
    found: dict[str, str] = {}
    for split, name in zip(known, names, strict=True):
        if split in found:
            raise KerasdistError(
                f"The folders {found[split]!r} and {name!r} both look like the {split} data. "
                "Expected one folder per split. Rename or remove one of them."
            )
        found[str(split)] = name
    return found


def check_fraction(validation_split: float) -> None:
    """Refuses a part for validation that is not a part."""
    if isinstance(validation_split, bool) or not 0 <= validation_split < 1:
        raise KerasdistError(
            f"Received `validation_split={validation_split!r}`. Expected a part from 0 to below "
            "1. Use for example 0.2 to validate on every fifth file."
        )


def for_validation(names: Sequence[str], part: float, key: str) -> set[int]:
    """The positions of the names that are for validation: this part of them, at least one.

    It is a function of the names, the part and the key alone, and a name that is added changes
    the place of few others. A single name is for training.

    Args:
        names: The names of the files of one class, or of the rows of a table.
        part: The part for validation.
        key: The seed, and the class.

    Example:
        >>> for_validation(["a.png", "b.png", "c.png"], 0.3, "0/cats")
        {2}
    """
    count = 0 if part == 0 else min(len(names) - 1, max(1, round(part * len(names))))

    def drawn(position: int) -> bytes:
        text = f"{key}/{names[position]}"
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()

    return set(sorted(range(len(names)), key=drawn)[:count])
