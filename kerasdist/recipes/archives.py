"""Unpacks tar and zip files, and nothing outside of the folder that it is given."""

from __future__ import annotations

import gzip
import lzma
import shutil
import tarfile
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import IO

from kerasdist.errors import first_line

# `RuntimeError`: a zip file with a password, or compressed in a way that Python does not know.
_DAMAGED = (
    *(tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError),
    *(EOFError, RuntimeError),
)


class BadArchiveError(Exception):
    """The archive is damaged, or not safe to unpack. The message says why."""


def unpack(path: Path, folder: Path) -> None:
    """Unpacks a tar or zip file into a folder. Refuses all that may lead out of the folder.

    It writes regular files and folders only, each at a checked name. That needs no `filter` of
    `tarfile`, which Python 3.11 has only from 3.11.4 on.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> with zipfile.ZipFile(folder / "clips.zip", "w") as archive:
        ...     archive.writestr("clips/one.txt", "1")
        >>> unpack(folder / "clips.zip", folder)
        >>> (folder / "clips" / "one.txt").read_text()
        '1'
    """
    try:
        _unpack(path, folder)
    except _DAMAGED as error:
        raise BadArchiveError(f"{type(error).__name__}: {first_line(error)}") from error


def _unpack(path: Path, folder: Path) -> None:
    if tarfile.is_tarfile(path):
        with tarfile.open(path) as tar:
            for member in tar:
                if not (member.isfile() or member.isdir()):
                    raise BadArchiveError(f"{member.name!r} is a link or a device")
                _write(folder, member.name, tar.extractfile(member) if member.isfile() else None)
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                _write(folder, info.filename, None if info.is_dir() else archive.open(info))
    else:
        raise BadArchiveError("it is neither a tar nor a zip file")


def _write(folder: Path, name: str, content: IO[bytes] | None) -> None:
    """Writes a file, or makes a folder if there is no content."""
    inside = PurePosixPath(name)
    if inside.is_absolute() or ".." in inside.parts or "\\" in name or "\0" in name:
        raise BadArchiveError(f"the name {name!r} is not safe")
    target = folder / inside
    if content is None:
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with content, target.open("wb") as file:
        shutil.copyfileobj(content, file)
