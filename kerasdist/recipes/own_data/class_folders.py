"""Reads folders with one folder of files per class: classes, files and splits."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kerasdist.errors import KerasdistError, closest
from kerasdist.recipes.own_data import listing
from kerasdist.recipes.own_data.kinds import Kind
from kerasdist.recipes.own_data.splits import (
    SPLITS,
    TRAIN,
    VALIDATION,
    Split,
    check_fraction,
    find_limit,
    for_validation,
    split_folders,
)

_MOST_NAMES = 5


@dataclass(frozen=True)
class Files:
    """The files of a split: paths relative to the folder, and the class number of each."""

    names: tuple[str, ...]
    labels: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.names)

    def without(self, left_out: Mapping[str, str]) -> Files:
        """These files without some."""
        kept = [i for i, name in enumerate(self.names) if name not in left_out]
        return Files(tuple(self.names[i] for i in kept), tuple(self.labels[i] for i in kept))


@dataclass(frozen=True)
class ClassFolders:
    """What a folder of class folders holds.

    Attributes:
        path: The folder.
        class_names: The names of the classes, sorted.
        splits: The files of each split that there is.
        has_split_folders: Whether the folder has folders for its splits.
        notes: What people may want to know: sentences.
        drawn: Which files were drawn for validation; None if there is a folder for it, or none.
    """

    path: Path
    class_names: tuple[str, ...]
    splits: Mapping[str, Files]
    has_split_folders: bool
    notes: tuple[str, ...]
    drawn: Split | None = None

    @property
    def all(self) -> Files:
        """The files of all splits."""
        return Files(
            tuple(name for files in self.splits.values() for name in files.names),
            tuple(label for files in self.splits.values() for label in files.labels),
        )

    def counts(self, split: str) -> list[int]:
        """The number of files of each class in a split."""
        found = Counter(self.splits[split].labels)
        return [found[label] for label in range(len(self.class_names))]


def read(
    path: Path,
    kind: Kind,
    *,
    class_names: Sequence[str] | None = None,
    validation_split: float = 0.2,
    seed: int = 0,
    drawn: Split | None = None,
) -> ClassFolders:
    """Lists the files of a folder by class and split.

    Args:
        path: The folder.
        kind: The kind of its files; others are left out.
        class_names: The classes that are expected, in the order of their numbers; by default those
            that are there, sorted.
        validation_split: The part of each class that is for validation, if there is no folder
            for it.
        seed: Decides which part.
        drawn: Which files were drawn for a training with this part and seed: the others are not
            for validation then, also if files were added or removed.
    """
    check_fraction(validation_split)
    _check_folder(path, kind)
    top = [entry.name for entry in listing.entries(path) if entry.is_dir()]
    odd: list[str] = []
    found = split_folders(top, lambda name: _holds(path / name, kind))
    if found is None:
        by_split = {TRAIN: _by_class(path, "", kind, odd)}
    else:
        by_split = {split: _by_class(path, name, kind, odd) for split, name in found.items()}
    names = _classes(path, kind, by_split, class_names)
    unused = [] if found is None else [name for name in top if name not in found.values()]
    notes = _notes(kind, odd, unused, by_split, names, class_names)
    if VALIDATION in by_split or validation_split == 0:
        drawn = None
    else:
        if drawn is None or (drawn.share, drawn.seed) != (validation_split, seed):
            drawn = _drawn(by_split[TRAIN], names, validation_split, seed)
        by_split |= _divided(by_split[TRAIN], names, drawn)
    splits = {
        split: _files(by_split[split], names)
        for split in SPLITS
        if any(by_split.get(split, {}).values())
    }
    return ClassFolders(path, names, splits, found is not None, notes, drawn)


# The files of each class, by its name.
_ByClass = dict[str, list[str]]


def _check_folder(path: Path, kind: Kind) -> None:
    if not path.exists():
        raise KerasdistError(
            f"The folder {str(path)!r} with the {kind.title} does not exist. Expected a folder "
            "with one folder per class. Check the name; if the folder was moved, name its new "
            "place with `--data-dir` (`data_dir`)."
        )
    if not path.is_dir():
        raise KerasdistError(
            f"{str(path)!r} is a file. Expected a folder with one folder of {kind.title} per "
            "class. Name the folder."
        )


def _holds(folder: Path, kind: Kind) -> bool:
    """Whether a folder has files of the kind."""
    return any(listing.suffix_of(file) in kind.suffixes for file in listing.files_below(folder))


def _by_class(path: Path, inside: str, kind: Kind, odd: list[str]) -> _ByClass:
    """The files of the kind in each folder of `path/inside`; the others are added to `odd`."""
    found: _ByClass = {}
    for entry in listing.entries(path / inside):
        below = f"{inside}/{entry.name}" if inside else entry.name
        if not entry.is_dir():
            odd.append(below)
            continue
        name = unicodedata.normalize("NFC", entry.name)
        files = found.setdefault(name, [])
        for file in listing.files_below(path / below):
            is_wanted = listing.suffix_of(file) in kind.suffixes
            (files if is_wanted else odd).append(f"{below}/{file}")
    return found


def _classes(
    path: Path, kind: Kind, by_split: Mapping[str, _ByClass], expected: Sequence[str] | None
) -> tuple[str, ...]:
    """The names of the classes. Raises if they cannot be trained on."""
    if expected is not None:
        _check_expected(path, kind, by_split, expected)
        return tuple(expected)
    names = tuple(sorted(name for name, files in by_split[TRAIN].items() if files))
    if len(names) < 2:
        raise _too_few(path, kind, names)
    for split, by_class in by_split.items():
        unknown = sorted(name for name, files in by_class.items() if files and name not in names)
        if unknown:
            raise KerasdistError(
                f"The {split} data of {str(path)!r} has the class {unknown[0]!r}, which the "
                f"training data does not have. Expected the classes of the training data: "
                f"{shown(names)}.{closest(unknown[0], names)} Rename the folder, or remove it."
            )
    return names


def _check_expected(
    path: Path, kind: Kind, by_split: Mapping[str, _ByClass], expected: Sequence[str]
) -> None:
    found = sorted({name for by in by_split.values() for name, files in by.items() if files})
    unknown = [name for name in found if name not in expected]
    if found and not unknown:
        return
    wanted = f"Expected folders with the names of the model's classes: {shown(expected)}."
    if unknown:
        raise KerasdistError(
            f"The folder {str(path)!r} has the class {unknown[0]!r}. {wanted}"
            f"{closest(unknown[0], expected)} Rename or remove the folder, or name another one."
        )
    if _holds(path, kind):
        raise KerasdistError(
            f"The folder {str(path)!r} holds {kind.title}, but no folder of them, as the folder of "
            f"a single class. {wanted} Name the folder that holds the folders of the classes."
        )
    raise KerasdistError(
        f"The folder {str(path)!r} holds no {kind.title} ({', '.join(kind.suffixes)}). {wanted} "
        "Name another folder."
    )


def _too_few(path: Path, kind: Kind, names: Sequence[str]) -> KerasdistError:
    if not names:
        return KerasdistError(
            f"The folder {str(path)!r} holds {kind.title}, but no folder of them. Expected at "
            f"least two folders of {kind.title}, one per class. Move the files of each class into "
            "a folder with the name of the class."
        )
    (name,) = names
    inner = [entry.name for entry in listing.entries(path / name) if entry.is_dir()]
    hint = f" Did you mean {str(path / name)!r}?" if len(inner) > 1 else ""
    return KerasdistError(
        f"The folder {str(path)!r} has {kind.title} of one class only: {name!r}. Expected at least "
        f"two folders of {kind.title}, one per class.{hint} Add a folder, or name another one."
    )


def _drawn(by_class: _ByClass, names: Sequence[str], part: float, seed: int) -> Split:
    """The limit of each class that gives validation its part of these files."""
    limits = (find_limit(by_class.get(name, ()), part, f"{seed}/{name}") for name in names)
    return Split(part, seed, tuple(limits))


def _divided(by_class: _ByClass, names: Sequence[str], drawn: Split) -> dict[str, _ByClass]:
    """The training and the validation files of each class."""
    if len(drawn.limits) != len(names):
        raise KerasdistError(
            f"Received a `split` of {len(drawn.limits)} classes for {len(names)}: {shown(names)}. "
            "Expected that of a folder with these classes. Give its `class_names`, too."
        )
    train: _ByClass = {}
    validation: _ByClass = {}
    for name, limit in zip(names, drawn.limits, strict=True):
        files = by_class.get(name, [])
        chosen = for_validation(files, limit, f"{drawn.seed}/{name}")
        validation[name] = [file for i, file in enumerate(files) if i in chosen]
        train[name] = [file for i, file in enumerate(files) if i not in chosen]
    return {TRAIN: train, VALIDATION: validation}


def _files(by_class: _ByClass, names: Sequence[str]) -> Files:
    pairs = [(file, label) for label, name in enumerate(names) for file in by_class.get(name, ())]
    return Files(tuple(file for file, _ in pairs), tuple(label for _, label in pairs))


def _notes(
    kind: Kind,
    odd: Sequence[str],
    unused: Sequence[str],
    by_split: Mapping[str, _ByClass],
    names: Sequence[str],
    expected: Sequence[str] | None,
) -> tuple[str, ...]:
    notes = []
    if odd:
        files = "1 file" if len(odd) == 1 else f"{len(odd):,} files"
        notes.append(f"left out {files} (not {kind.title} in the folder of a class): {shown(odd)}")
    without = {name for by in by_split.values() for name, files in by.items() if not files}
    if empty := sorted({*unused, *without} - {*names}):
        notes.append(f"left out folders without {kind.title}: {shown(empty)}")
    for split, by_class in by_split.items() if expected is None else ():
        missing = [name for name in names if not by_class.get(name)]
        if missing:
            notes.append(f"no {split} files of: {shown(missing)}")
    single = [name for name in names if len(by_split[TRAIN].get(name, ())) == 1]
    if single and VALIDATION not in by_split and expected is None:
        notes.append(f"one file only, so none for validation: {shown(single)}")
    return tuple(notes)


def shown(names: Sequence[str]) -> str:
    """The first few names, and how many there are if these are not all."""
    text = ", ".join(names[:_MOST_NAMES])
    return text if len(names) <= _MOST_NAMES else f"{text}, ... ({len(names):,})"
