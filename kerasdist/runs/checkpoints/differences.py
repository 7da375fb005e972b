"""Compares a checkpoint with the run that resumes from it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from kerasdist.errors import KerasdistError
from kerasdist.runs import provenance


def refuse_other_run(saved: Mapping[str, Any], now: Mapping[str, Any], path: Path) -> None:
    """Raises an error if the model, the data or the settings differ from the checkpoint's."""
    different = _differences(saved, now, sorted({*saved, *now}))
    if different:
        raise KerasdistError(
            f"The run cannot continue from {path}, because it was saved with other settings: "
            f"{'; '.join(different)}. Expected the same model, data and settings. Restore them, or "
            "start a new run with another `run_dir` (or, on the command line, `--no-resume`)."
        )


def bits_warning(
    before: Mapping[str, Any], now: Mapping[str, Any], *, deterministic: bool
) -> str | None:
    """A warning if versions or hardware differ, so that the weights may not be bit-identical.

    Args:
        before: `provenance.made_with()` of the checkpoint, and "jit": whether XLA compiled the
            step. It did not if this is missing.
        now: That of this process.
        deterministic: Whether the run promises equal bits, so that the machine matters, too.
    """
    names = provenance.VERSIONS + (provenance.MACHINE if deterministic else ())
    different = _differences(before, now, [name for name in names if name in before])
    compiled = {"jit": False, **before}, {"jit": False, **now}
    different += _differences(*compiled, ["jit"])
    if not different:
        return None
    return (
        f"the run was saved with other versions or hardware: {'; '.join(different)}. It continues, "
        "but its weights may not be bit-identical to those of a run that was never stopped"
    )


def _differences(
    saved: Mapping[str, Any], now: Mapping[str, Any], names: Iterable[str]
) -> list[str]:
    return [
        f"{name} was {saved.get(name)!r} and is {now.get(name)!r}"
        for name in names
        if saved.get(name) != now.get(name)
    ]
