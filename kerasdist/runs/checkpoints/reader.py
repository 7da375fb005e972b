"""Reads one checkpoint and verifies every byte of it."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from kerasdist.runs.checkpoints import manifests
from kerasdist.runs.checkpoints.files import CHUNK, READ, Files
from kerasdist.runs.checkpoints.manifests import ARRAYS, MANIFEST, BrokenError, Manifest
from kerasdist.runs.checkpoints.names import step_of

# What reading a damaged checkpoint can raise.
UNREADABLE = (BrokenError, EOFError, OSError)


class Reader:
    """Reads checkpoints with the given file-system calls. Changes nothing."""

    def __init__(self, files: Files):
        self._files = files

    def manifest(self, path: Path) -> Manifest:
        """Reads the manifest, and compares the sizes of the files with it."""
        if not self._files.is_folder(path):
            raise BrokenError("it is a link or a file, not a folder")
        raw = bytearray(self._size(path / MANIFEST, manifests.MOST_MANIFEST_BYTES))
        with self._files.opened(path / MANIFEST, READ) as file:
            self._files.read_all(file, memoryview(raw))
        manifest = manifests.decode(bytes(raw))
        if manifest.step != step_of(path):
            raise BrokenError(f"{MANIFEST} is that of step {manifest.step}")
        if (size := self._size(path / ARRAYS, manifest.size)) != manifest.size:
            raise BrokenError(f"{ARRAYS} has {size} bytes, not {manifest.size}")
        return manifest

    def arrays(self, path: Path, manifest: Manifest) -> dict[str, np.ndarray]:
        """Reads the arrays, and compares their bytes with the manifest's sha256."""
        arrays = {}
        digest = hashlib.sha256()
        position = 0
        with self._files.opened(path / ARRAYS, READ) as file:
            for entry in manifest.entries:
                padding = memoryview(bytearray(entry.offset - position))
                self._files.read_all(file, padding, digest)
                raw = np.empty(entry.nbytes, np.uint8)
                self._files.read_all(file, raw.data, digest)
                dtype = manifests.dtype_of(entry.dtype)
                arrays[entry.name] = raw.view(dtype).reshape(entry.shape)
                position = entry.offset + entry.nbytes
        if digest.hexdigest() != manifest.sha256:
            raise BrokenError(f"{ARRAYS} does not have its sha256")
        return arrays

    def verifies(self, path: Path) -> bool:
        """Checks every byte, without a second copy of the arrays in memory."""
        try:
            manifest = self.manifest(path)
            digest = hashlib.sha256()
            buffer = memoryview(bytearray(min(CHUNK, manifest.size)))
            with self._files.opened(path / ARRAYS, READ) as file:
                for start in range(0, manifest.size, CHUNK):
                    self._files.read_all(file, buffer[: manifest.size - start], digest)
        except UNREADABLE:
            return False
        return digest.hexdigest() == manifest.sha256

    def looks_good(self, path: Path) -> bool:
        """Checks everything except the bytes of the arrays, which would take too long."""
        try:
            self.manifest(path)
        except UNREADABLE:
            return False
        return True

    def _size(self, path: Path, most: int) -> int:
        size = self._files.size(path)
        if size is None:
            raise BrokenError(f"{path.name} is missing, or is not a regular file")
        if size > most:
            raise BrokenError(f"{path.name} has {size} bytes, more than {most}")
        return size


def reason(error: Exception) -> str:
    """Why a checkpoint could not be read, as a part of a sentence."""
    if isinstance(error, OSError):
        return f"it cannot be read: {error.strerror}"
    return str(error) or "a file ends too early"
