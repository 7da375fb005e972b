"""Reads text files: UTF-8, else Windows-1252, which holds Latin-1."""

from __future__ import annotations

import codecs
from pathlib import Path

from kerasdist.errors import KerasdistError
from kerasdist.tables.files.encoding import encoding_of

# A model reads far fewer words than this many characters.
MOST_BYTES = 1 << 20


def problem(path: Path) -> str | None:
    """What is wrong with a text file, or None."""
    try:
        start = _start(path)
    except OSError as error:
        return f"cannot be opened: {error.strerror}"
    if b"\0" in start and not start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "is not text: it has bytes of value 0"
    return None if _decoded(start).strip() else "is empty"


def read_text(path: Path) -> str:
    """The text of a file, or its first megabyte."""
    found = problem(path)
    if found is not None:
        raise KerasdistError(
            f"The file {str(path)!r} {found}. Expected a text. Replace the file, or leave it out."
        )
    return _decoded(_start(path))


def _start(path: Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(MOST_BYTES)


def _decoded(content: bytes) -> str:
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return content.decode("utf-16", "replace")
    if encoding_of([content]).name == "cp1252":
        return content.decode("cp1252", "replace")
    # The last character may be cut.
    text = codecs.getincrementaldecoder("utf-8-sig")("replace").decode(content)
    return text.replace("\r\n", "\n")
