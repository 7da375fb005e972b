"""The kinds of data that kerasdist trains on without code, and which of them a path holds."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from kerasdist.errors import KerasdistError
from kerasdist.recipes.own_data import listing


@dataclass(frozen=True)
class Kind:
    """A kind of data.

    Attributes:
        recipe: The template whose recipe reads it, such as "image".
        title: What it is called in sentences, such as "images".
        suffixes: The suffixes of its files, in lower case.
        form: "folders" (one folder of files per class) or "file" (a single file).
    """

    recipe: str
    title: str
    suffixes: tuple[str, ...]
    form: str = "folders"


IMAGES = Kind("image", "images", (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp"))
SOUNDS = Kind("audio", "WAV files", (".wav", ".wave"))

# To add a kind: add it here, and a template with its name.
KINDS: tuple[Kind, ...] = (IMAGES, SOUNDS)

# In a folder with two kinds, the rarer one is ignored up to this part of the files: one forgotten
# picture among the recordings.
_MOST_ODD = 0.1


def look(path: Path) -> Kind:
    """The kind of data at an existing path. Raises if there is none that can be trained on."""
    if not path.is_dir():
        return _look_at_file(path)
    suffixes = listing.count_suffixes(path)
    counts = Counter(
        {
            kind: sum(suffixes[suffix] for suffix in kind.suffixes)
            for kind in KINDS
            if kind.form == "folders"
        }
    )
    total = counts.total()
    if not total:
        raise _nothing(path, suffixes)
    ((kind, most), *others) = counts.most_common()
    if total - most > _MOST_ODD * total:
        found = " and ".join(f"{n:,} {other.title}" for other, n in [(kind, most), *others] if n)
        raise KerasdistError(
            f"The folder {str(path)!r} holds {found}. Expected one kind of files. Name a folder "
            "with one kind only."
        )
    return kind


def _look_at_file(path: Path) -> Kind:
    kinds = [kind for kind in KINDS if kind.form == "file"]
    for kind in kinds:
        if path.suffix.lower() in kind.suffixes:
            return kind
    singles = ", ".join(suffix for kind in kinds for suffix in kind.suffixes)
    raise KerasdistError(
        f"{str(path)!r} is a file that kerasdist cannot train on. Expected "
        f"{f'a file that ends in {singles}, or ' if singles else ''}a folder with one folder of "
        f"{described()} per class. {_hint(path)}"
    )


def _hint(path: Path) -> str:
    if path.suffix.lower() in (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".7z", ".rar"):
        return "Unpack it, and name the folder."
    return "Name the folder that holds the folders of the classes."


def described() -> str:
    """The kinds that come in folders, in words."""
    *most, last = [kind.title for kind in KINDS if kind.form == "folders"]
    return f"{', '.join(most)} or {last}" if most else last


def _nothing(path: Path, suffixes: Counter[str]) -> KerasdistError:
    known = ", ".join(s for kind in KINDS if kind.form == "folders" for s in kind.suffixes)
    if not suffixes:
        found = f"The folder {str(path)!r} is empty."
    else:
        shown = ", ".join(suffix or "no suffix" for suffix, _ in suffixes.most_common(5))
        found = f"The folder {str(path)!r} holds no files that kerasdist can train on ({shown})."
    singles = [kind for kind in KINDS if kind.form == "file" for s in kind.suffixes if suffixes[s]]
    hint = f" To train on a {singles[0].title}, name the file." if singles else ""
    return KerasdistError(
        f"{found} Expected a recipe (config.py, data.py and model.py), or one folder of "
        f"{described()} per class ({known}). Check the name.{hint}"
    )
