"""Writes files so that a reader never sees half of one, and formats the JSON in them."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def as_number(value: Any) -> Any:
    """Converts a logged value (a tensor or an array) to a float, or to lists of floats."""
    array = getattr(value, "numpy", lambda: value)()
    return array.tolist() if hasattr(array, "tolist") else array


def as_json(content: Any, indent: int | None = None) -> str:
    """Formats JSON that every reader accepts: NaN and infinity become null.

    Example:
        >>> as_json({"loss": float("nan"), "step": 3})
        '{"loss": null, "step": 3}'
    """
    return json.dumps(_finite(content), indent=indent, default=str, allow_nan=False)


def _finite(content: Any) -> Any:
    if isinstance(content, Mapping):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_finite(value) for value in content]
    content = as_number(content)
    return None if isinstance(content, float) and not math.isfinite(content) else content


@contextlib.contextmanager
def replacing(path: Path, *, draft: Path | None = None, sync: bool = False) -> Iterator[Path]:
    """Gives a draft to write to, and renames it to `path` when the block ends without an error.

    If the block fails, the draft is removed: half a file would only fill the disk.

    Args:
        path: The file to replace. A reader sees its old content or all of the new content.
        draft: The file to write first, in the same folder; `.NAME.tmp` by default.
        sync: Whether to wait until the content is on the disk, so that a power failure right after
            the rename cannot leave an empty file.

    Example:
        >>> import tempfile
        >>> file = Path(tempfile.mkdtemp()) / "notes.txt"
        >>> with replacing(file) as draft:
        ...     _ = draft.write_text("all of it")
        >>> file.read_text()
        'all of it'
    """
    draft = path.with_name(f".{path.name}.tmp") if draft is None else draft
    try:
        yield draft
        if sync:
            with open(draft, "rb") as file:
                os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        with contextlib.suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def write_bytes(path: Path, content: bytes, *, sync: bool = False) -> None:
    """Replaces a file's content, completely or not at all."""
    with replacing(path, sync=sync) as draft:
        draft.write_bytes(content)


def write_text(path: Path, text: str, *, sync: bool = False) -> None:
    """Replaces a file's content with text in UTF-8, completely or not at all."""
    # "replace": file names in the text can hold bytes that are not UTF-8.
    write_bytes(path, text.encode("utf-8", errors="replace"), sync=sync)


def write_json(path: Path, content: Any, *, sync: bool = False) -> None:
    """Replaces a file's content with indented JSON, completely or not at all."""
    write_text(path, as_json(content, indent=2) + "\n", sync=sync)
