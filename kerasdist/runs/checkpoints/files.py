"""The file-system calls of the checkpoint store, in one place where tests can make them fail."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# Neither follow links, nor wait for a pipe that somebody put there.
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
CHUNK = 4 * 2**20


class Files:
    """The calls, which tests replace, and what is built from them. Links are never followed."""

    open = staticmethod(os.open)
    close = staticmethod(os.close)
    read = staticmethod(os.readv)
    write = staticmethod(os.write)
    fsync = staticmethod(os.fsync)
    lstat = staticmethod(os.lstat)
    listdir = staticmethod(os.listdir)
    mkdir = staticmethod(os.mkdir)
    rename = staticmethod(os.rename)
    unlink = staticmethod(os.unlink)
    rmdir = staticmethod(os.rmdir)

    @contextlib.contextmanager
    def opened(self, path: Path, flags: int) -> Iterator[int]:
        """Opens a file, gives its descriptor, and closes it at the end."""
        file = self.open(path, flags, 0o666)
        try:
            yield file
        finally:
            self.close(file)

    def write_all(self, file: int, data: memoryview, digest: Any = None) -> None:
        """Writes all of `data`, in chunks, and adds it to the digest."""
        # Chunk by chunk: when the digest reads a chunk, it is still in the processor's cache.
        while data:
            num_bytes = self.write(file, data[:CHUNK])
            if digest is not None:
                digest.update(data[:num_bytes])
            data = data[num_bytes:]

    def read_all(self, file: int, buffer: memoryview, digest: Any = None) -> None:
        """Fills the buffer, or raises `EOFError`."""
        while buffer:
            num_bytes = self.read(file, [buffer[:CHUNK]])
            if not num_bytes:
                raise EOFError
            if digest is not None:
                digest.update(buffer[:num_bytes])
            buffer = buffer[num_bytes:]

    def sync_folder(self, folder: Path) -> None:
        """Makes the names in a folder survive a power failure."""
        with self.opened(folder, os.O_RDONLY | os.O_DIRECTORY) as file:
            try:
                self.fsync(file)
            except OSError as error:
                # Some network file systems cannot sync folders.
                if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                    raise

    def sync_parents(self, folder: Path) -> None:
        """Makes the names of a folder and of all folders above it survive a power failure."""
        first, *others = folder.absolute().parents
        self.sync_folder(first)
        for parent in others:
            with contextlib.suppress(
                OSError
            ):  # This process may not be allowed to open each of them.
                self.sync_folder(parent)

    def make_folder(self, folder: Path, *, with_parents: bool = True) -> bool:
        """Makes a folder, and by default those above it; False if it exists already."""
        try:
            self.mkdir(folder)
        except FileExistsError:
            return False
        except FileNotFoundError:
            if folder.parent == folder or not with_parents:
                raise
            self.make_folder(folder.parent)
            self.mkdir(folder)
        return True

    def exists(self, path: Path) -> bool:
        try:
            self.lstat(path)
        except FileNotFoundError:
            return False
        return True

    def is_folder(self, path: Path) -> bool:
        """Whether it is a folder, not a link to one; raises an error if nothing is there."""
        return stat.S_ISDIR(self.lstat(path).st_mode)

    def size(self, path: Path) -> int | None:
        """The size of a regular file; None for anything else, and if nothing is there."""
        try:
            status = self.lstat(path)
        except FileNotFoundError:
            return None
        return status.st_size if stat.S_ISREG(status.st_mode) else None
