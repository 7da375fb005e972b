"""The names of the folders in `checkpoints/`: checkpoints, drafts, and old ones moved aside."""

from __future__ import annotations

import os
import re
import secrets
from pathlib import Path

_STEP = re.compile(r"step-([0-9]{8,})")
_TEMPORARY = re.compile(r"tmp-(?:save|old)-[0-9]{8,}-([0-9]{1,10})-[0-9a-f]{8}")
_ASIDE = re.compile(r"tmp-old-([0-9]{8,})-[0-9]{1,10}-[0-9a-f]{8}")


def of_step(step: int) -> str:
    """The name of a checkpoint.

    Example:
        >>> of_step(1200)
        'step-00001200'
    """
    return f"step-{step:08d}"


def new_draft(step: int) -> str:
    """A new name for a checkpoint that is being written."""
    return _temporary("save", step)


def new_aside(step: int) -> str:
    """A new name for a checkpoint that is about to be replaced or removed."""
    return _temporary("old", step)


def _temporary(kind: str, step: int) -> str:
    return f"tmp-{kind}-{step:08d}-{os.getpid()}-{secrets.token_hex(4)}"


def is_aside(name: str) -> bool:
    """Whether it is the name of a checkpoint that was moved aside."""
    return _ASIDE.fullmatch(name) is not None


def writer_of(name: str) -> int | None:
    """The id of the process that made a draft or moved one aside; None for other names."""
    match = _TEMPORARY.fullmatch(name)
    return None if match is None else int(match[1])


def steps_in(names: list[str]) -> list[int]:
    """The steps that have a checkpoint among these names, ascending."""
    steps = sorted({int(match[1]) for match in map(_STEP.fullmatch, names) if match})
    # Without names such as `step-000000012`, which `of_step` does not give.
    return [step for step in steps if of_step(step) in names]


def step_of(path: Path) -> int:
    """The step of a checkpoint, or of one that was moved aside."""
    match = _STEP.fullmatch(path.name) or _ASIDE.fullmatch(path.name)
    if match is None:
        raise ValueError(f"{path.name!r} is not the name of a checkpoint")
    return int(match[1])
