"""Decides which files are for training, for validation and for testing."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

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
# A key is below this. JSON's numbers are exact up to 53 bits.
_KEYS = 2**53
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


@dataclass(frozen=True)
class Split:
    """Which rows or files are for validation: those whose key is below the limit of their class.

    A key depends on a row or the name of a file alone. So with the same limits each keeps its part
    when others are added or removed.

    Attributes:
        share: The part that is for validation.
        seed: Decides which.
        limits: The limit of each class; a single one if there are no classes.
    """

    share: float
    seed: int
    limits: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "limits": list(self.limits)}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Split:
        """From the plain values that `to_json` gives."""
        return cls(content["share"], content["seed"], tuple(content["limits"]))


def find_limit(names: Sequence[str], part: float, key: str) -> int:
    """The limit that gives validation this part of some files, but at least one.

    A single file is for training. Of files that are added, about the same part is below the limit.

    Args:
        names: The names of the files of one class.
        part: The part for validation.
        key: The seed, and the class.

    Example:
        >>> names = ["a.png", "b.png", "c.png"]
        >>> for_validation(names, find_limit(names, 0.3, "0/cats"), "0/cats")
        {2}
    """
    if part == 0:
        return 0
    keys = sorted(_key(name, key) for name in names)
    count = max(min(len(keys) - 1, max(1, round(part * len(keys)))), 0)
    # Every limit between these gives `count`. The nearest to the part suits other files best.
    lowest = keys[count - 1] + 1 if count else 0
    highest = keys[count] if keys else _KEYS
    return min(max(round(part * _KEYS), lowest), highest)


def for_validation(names: Sequence[str], limit: int, key: str) -> set[int]:
    """The positions of the names that are for validation: a function of each name alone.

    Args:
        names: The names of the files of one class.
        limit: What `find_limit` gave for these files, or for those of a training.
        key: The seed, and the class.
    """
    return {i for i, name in enumerate(names) if _key(name, key) < limit}


def _key(name: str, key: str) -> int:
    digest = hashlib.sha256(f"{key}/{name}".encode("utf-8", "surrogateescape")).digest()
    return int.from_bytes(digest[:8], "big") >> 11
