"""Class folders without the files that cannot be used, and what was found, in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kerasdist.errors import KerasdistError
from kerasdist.recipes.own_data import class_folders
from kerasdist.recipes.own_data.bad_files import find_bad, named, refuse
from kerasdist.recipes.own_data.class_folders import ClassFolders
from kerasdist.recipes.own_data.kinds import Kind
from kerasdist.recipes.own_data.splits import TRAIN, VALIDATION, Split

# More classes are not listed with their counts.
_MOST_CLASSES = 6
# Headers of so many files say how large files are.
_MOST_SAMPLED = 500


@dataclass(frozen=True)
class CheckedFolders:
    """Class folders with good files only, and what is wrong with the files that were left out."""

    folders: ClassFolders
    skipped: dict[str, str]
    kind: Kind
    validation_split: float

    @property
    def split(self) -> dict[str, Any]:
        """Which files were drawn for validation, as plain values; empty if none were."""
        return self.folders.drawn.to_json() if self.folders.drawn else {}

    def sample(self) -> list[Path]:
        """Up to a few hundred files of the first split, evenly spread over the classes."""
        names = next(iter(self.folders.splits.values())).names
        step = max(1, len(names) // _MOST_SAMPLED)
        return [self.folders.path / name for name in names[::step]]

    def describe(self, sizes: str) -> dict[str, str]:
        """What was found, by title."""
        found = {
            "found": f"{self.kind.title} of {len(self.folders.class_names)} classes: "
            f"{self._counts()}",
            "sizes": sizes,
            "split": self._splits(),
        }
        if self.skipped:
            files = "1 file" if len(self.skipped) == 1 else f"{len(self.skipped):,} files"
            found["skipped"] = f"{files}: {named(self.skipped)}"
        return found | ({"note": "; ".join(self.folders.notes)} if self.folders.notes else {})

    def _counts(self) -> str:
        folders = self.folders
        per_split = [folders.counts(split) for split in folders.splits]
        counts = [sum(each) for each in zip(*per_split, strict=True)]
        if len(counts) <= _MOST_CLASSES:
            pairs = zip(folders.class_names, counts, strict=True)
            return ", ".join(f"{name} {count:,}" for name, count in pairs)
        names = class_folders.shown(folders.class_names)
        return f"{min(counts):,} to {max(counts):,} files each: {names}"

    def _splits(self) -> str:
        folders = self.folders
        words = {"train": "for training", "validation": "for validation", "test": "for testing"}
        parts = [f"{len(files):,} {words[split]}" for split, files in folders.splits.items()]
        if VALIDATION not in folders.splits:
            parts.append("none for validation")
        own = "by folder" if folders.has_split_folders else ""
        drawn = f"{self.validation_split:g} of each class, drawn"
        is_drawn = VALIDATION in folders.splits and not own
        return ", ".join(parts) + (f" ({own or drawn})" if own or is_drawn else "")


def read_checked(
    path: Path,
    kind: Kind,
    problem: Callable[[Path], str | None],
    *,
    skip_bad: bool,
    class_names: Sequence[str] | None = None,
    validation_split: float = 0.2,
    seed: int = 0,
    drawn: Split | None = None,
) -> CheckedFolders:
    """Reads class folders and looks at every file. Raises if some cannot be used.

    Args:
        path: The folder.
        kind: The kind of its files.
        problem: What is wrong with a file, or None.
        skip_bad: Whether to leave bad files out instead. The split of the others stays the same.
        class_names: The classes that are expected.
        validation_split: See `class_folders.read`.
        seed: See `class_folders.read`.
        drawn: See `class_folders.read`.
    """
    folders = class_folders.read(
        path,
        kind,
        class_names=class_names,
        validation_split=validation_split,
        seed=seed,
        drawn=drawn,
    )
    names = folders.all.names
    bad = find_bad(path, names, problem)
    if not skip_bad:
        refuse(path, bad, len(names), kind.title)
    if bad:
        splits = {split: files.without(bad) for split, files in folders.splits.items()}
        folders = replace(folders, splits={s: files for s, files in splits.items() if files.names})
        _check_left(folders, kind, class_names is not None)
    return CheckedFolders(folders, bad, kind, validation_split)


def _check_left(folders: ClassFolders, kind: Kind, is_known: bool) -> None:
    counts = folders.counts(TRAIN) if TRAIN in folders.splits else [0] * len(folders.class_names)
    gone = [n for n, count in zip(folders.class_names, counts, strict=True) if not count]
    if gone and not is_known:
        raise KerasdistError(
            f"None of the training files of {class_folders.shown(gone)} in {str(folders.path)!r} "
            f"can be used. Expected complete {kind.title} of every class. Replace the files, or "
            "remove the folder of the class."
        )
