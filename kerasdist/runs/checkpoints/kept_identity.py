"""The identity in a run's newest checkpoint: with which model, data and settings it was made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kerasdist.runs.checkpoints.store import Store
from kerasdist.runs.file_names import CHECKPOINTS


def kept_identity(folder: Path) -> dict[str, Any]:
    """The identity of the run in a folder; an empty one if it has no checkpoint."""
    if not (folder / CHECKPOINTS).is_dir():
        return {}
    meta = Store(folder / CHECKPOINTS, make_parents=False).newest_meta()
    found: dict[str, Any] = (meta or {}).get("identity", {})
    return found
