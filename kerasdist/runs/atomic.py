"""Files that a reader never sees half written, and the JSON in them."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def as_number(value: Any) -> Any:
    """A logged value as Python's own type: a float, or lists of them."""
    array = getattr(value, "numpy", lambda: value)()
    return array.tolist() if hasattr(array, "tolist") else array


def as_json(content: Any, indent: int | None = None) -> str:
    """JSON that every reader accepts: null for NaN and infinity, which JSON does not have."""
    return json.dumps(_finite(content), indent=indent, default=str, allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    content = as_number(content)
    return None if isinstance(content, float) and not math.isfinite(content) else content


def write_text(path: Path, text: str) -> None:
    """Writes beside the file and renames; a failed write leaves nothing on a full disk."""
    draft = path.with_name(f".{path.name}.tmp")
    try:
        # File names can hold bytes that are not text.
        draft.write_text(text, encoding="utf-8", errors="replace")
        os.replace(draft, path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    """Writes an object as indented JSON, whole or not at all."""
    write_text(path, as_json(content, indent=2) + "\n")
