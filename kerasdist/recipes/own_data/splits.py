"""Decides which files are for training, for validation and for testing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Sequence

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
_WORDS = "|".join(_SPLIT_OF)
_LONGER = re.compile(rf"(.*[-_. ])?({_WORDS})([-_. ].*)?", re.IGNORECASE)


def split_folders(names: Iterable[str], holds: Callable[[str], bool]) -> dict[str, str] | None:
    """The folder of each split, if these folders are splits; None if they are classes.

    Args:
        names: The folders.
        holds: Whether a folder has files of the kind. Without any, it is not looked at.

    Example:
        >>> split_folders(["Train", "val", "docs"], lambda name: name != "docs")
        {'train': 'Train', 'validation': 'val'}
        >>> split_folders(["train", "bus"], lambda name: True) is None
        True
    """
    known = {name: _SPLIT_OF.get(name.lower()) for name in names}
    if TRAIN not in known.values():
        _refuse_longer_names(known, holds)
        return None
    others = [name for name, split in known.items() if split is None and holds(name)]
    found: dict[str, str] = {}
    for name, split in known.items():
        if split in found and not others:
            raise KerasdistError(
                f"The folders {found[split]!r} and {name!r} both look like the {split} data. "
                "Expected one folder per split. Rename or remove one of them."
            )
        if split is not None:
            found[split] = name
    if not others:
        return found
    if len(found) > 1:
        raise KerasdistError(
            f"The folders {_quoted(found.values())} look like splits, but {_quoted(others)} beside "
            "them is neither a split nor empty. Expected only folders for splits (train, val, "
            f"test), or only classes. Move {_quoted(others)} elsewhere, or rename the folders if "
            "they are classes."
        )
    return None  # "train" is a class.


def _refuse_longer_names(names: Iterable[str], holds: Callable[[str], bool]) -> None:
    """Refuses seg_train and seg_test, which nobody calls classes."""
    alike: dict[tuple[str, str], dict[str, str]] = {}
    for name in names:
        if match := _LONGER.fullmatch(name):
            before, word, after = match.groups()
            alike.setdefault((before or "", after or ""), {})[_SPLIT_OF[word.lower()]] = name
    for found in alike.values():
        if TRAIN in found and len(found) > 1 and all(holds(name) for name in found.values()):
            raise KerasdistError(
                f"The folders {_quoted(found.values())} look like splits, not like classes. "
                "Expected the names train, val and test for splits, with one folder per class "
                "inside each. Rename them, and move the folders beside them elsewhere."
            )


def _quoted(names: Iterable[str]) -> str:
    *most, last = [repr(name) for name in names]
    return f"{', '.join(most)} and {last}" if most else last


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
