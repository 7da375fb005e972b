"""Finds runs and reads how they stand: which folders are runs, which is next, which finished."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kerasdist.errors import KerasdistError, closest
from kerasdist.runs.file_names import CONFIG, FINAL, RESULT
from kerasdist.runs.lock import is_locked

# How many folders deep to search. Runs are in runs/NAME/NNNN.
_DEEPEST = 5
# In config.json: the hash of the code that a run was started with. It is not a setting.
CODE = "code_sha256"


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; an empty one if the file is missing or broken."""
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def read_config(path: Path) -> dict[str, Any] | None:
    """The configuration of a run; None if the folder is not a kerasdist run."""
    config = read_object(path / CONFIG)
    return config if "kerasdist" in config else None


def is_run(path: Path) -> bool:
    """Whether a folder is a kerasdist run. Nothing else is ever continued."""
    return read_config(path) is not None


def newest_first(parent: Path) -> list[Path]:
    """The numbered runs in a folder, the highest number first."""
    found = [p for p in parent.glob("[0-9]*") if p.name.isdigit() and is_run(p)]
    return sorted(found, key=lambda p: int(p.name), reverse=True)


def runs_below(path: Path, depth: int = 0) -> Iterator[Path]:
    """The runs in a folder and in its subfolders, without links and hidden folders."""
    if is_run(path):
        yield path
        return
    try:
        with os.scandir(path) as entries:
            inner = sorted(
                entry.name
                for entry in entries
                if entry.is_dir(follow_symlinks=False) and not entry.name.startswith(".")
            )
    except OSError:  # A folder that may not be read.
        return
    for name in inner if depth < _DEEPEST else ():
        yield from runs_below(path / name, depth + 1)


def next_run_folder(parent: str | os.PathLike[str]) -> Path:
    """`parent/0001`, or the number after the highest one there."""
    parent = Path(parent)
    numbers = [int(p.name) for p in parent.glob("[0-9]*") if p.name.isdigit()]
    return parent / f"{max(numbers, default=0) + 1:04d}"


def status(path: Path) -> str:
    """The status in result.json; "unfinished" if there is none."""
    return str(read_object(path / RESULT).get("status", "unfinished"))


def current_status(path: Path) -> str:
    """ "running" while a process holds the run's lock, else its `status`."""
    return "running" if is_locked(path) else status(path)


def check_run(path: Path) -> None:
    """Refuses a folder that is not a run. The error suggests a run with a similar name."""
    if is_run(path):
        return
    there = [p for p in path.parent.parent.glob(f"*/*/{CONFIG}") if is_run(p.parent)]
    inside = newest_first(path)
    guess = closest(str(path), [str(inside[0])] if inside else sorted(str(p.parent) for p in there))
    is_model = path.suffix in (".keras", ".h5")
    if not path.exists():
        problem = f"The {'file' if is_model else 'folder'} {str(path)!r} does not exist."
    elif not path.is_dir():
        problem = f"{str(path)!r} is a file."
    else:
        problem = f"{str(path)!r} is not a run: it has no {CONFIG} that kerasdist wrote."
    hint = "`kerasdist runs` lists the runs."
    if is_model:
        hint = "`keras.saving.load_model` loads a model's file."
    raise KerasdistError(f"{problem} Expected the folder of a run.{guess} {hint}")


def check_finished(path: Path) -> None:
    """Refuses a run that has not finished."""
    check_run(path)
    if not (path / FINAL).is_file():
        raise KerasdistError(
            f"The run {str(path)!r} has not finished: it has no {FINAL}. Expected a finished run. "
            "Train it to the end first, or use its newest checkpoint with "
            '`which="last"` (`--which last`).'
        )
