"""Makes sure that a run writes only to its own folder, and makes the folder again if it is lost.

Training can take days. Meanwhile somebody may remove the run's folder, move it away, or put another
one in its place. Files written by path would then be lost, or end up in a folder that belongs to
somebody else. So whoever writes to a run calls `ensure` first.
"""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from pathlib import Path

from kerasdist.runs.atomic import write_bytes
from kerasdist.runs.file_names import DESCRIPTION, LOCK
from kerasdist.runs.lock import RunLock

# By absolute path. They stay after the run: its result is written after the folder is given up.
_known: dict[Path, OwnFolder] = {}


class NotOwnFolderError(OSError):
    """Something else is where the run's folder was."""

    def __init__(self, path: Path):
        super().__init__(errno.EEXIST, "something else is there now, and is left alone", path)


class OwnFolder:
    """The folder of a run that this process has locked (see `kerasdist.runs.lock`).

    Attributes:
        times_lost: How often it was lost and made again.

    Example:
        >>> import shutil, tempfile
        >>> folder = OwnFolder(tempfile.mkdtemp())
        >>> shutil.rmtree(folder.path)
        >>> folder.ensure()
        >>> folder.path.is_dir()
        True
        >>> folder.close()
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path).absolute()
        self.times_lost = 0
        self._guard = threading.Lock()
        # Kept open, so that no new folder gets the inode number of a removed one.
        self._descriptors: list[int] = []
        self._identities: list[tuple[int, int]] = []
        self._lock: RunLock | None = None
        self._is_closed = False
        self._add()
        self._lock_identity = _identity(self.path / LOCK)
        self._description: dict[str, bytes] = {}
        for name in DESCRIPTION:
            with contextlib.suppress(FileNotFoundError):
                self._description[name] = (self.path / name).read_bytes()
        _known[self.path] = self

    def ensure(self) -> None:
        """Makes the folder again if it is gone, with its lock and its description.

        Raises:
            OSError: If that fails; `NotOwnFolderError` if something else is in its place.
            RunLockedError: If another process has locked the run in the meantime.
        """
        with self._guard:
            found = _identity(self.path)
            if found is None and self._is_closed:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), self.path)
            if found is None:
                self._make_again()
            elif found not in self._identities:
                raise NotOwnFolderError(self.path)
            if not self._is_closed:
                self._take_lock()
                self._describe()

    def close(self) -> None:
        """Gives up the folder. After this, `ensure` does not make it again."""
        with self._guard:
            self._is_closed = True
            if self._lock is not None:
                self._lock.release()
                self._lock = None
            for descriptor in self._descriptors:
                os.close(descriptor)
            self._descriptors = []
            self._description = {}

    def _add(self) -> None:
        self._descriptors.append(os.open(self.path, os.O_RDONLY | os.O_DIRECTORY))
        status = os.fstat(self._descriptors[-1])
        self._identities.append((status.st_dev, status.st_ino))

    def _make_again(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.path.mkdir()  # Fails if another process is quicker: the folder is then theirs.
        except FileExistsError:
            raise NotOwnFolderError(self.path) from None
        self.times_lost += 1
        self._add()
        # Before the lock: a folder that holds only a lock is neither a run nor empty.
        self._describe()

    def _take_lock(self) -> None:
        if _identity(self.path / LOCK) == self._lock_identity:
            return
        lock = RunLock(self.path)
        lock.acquire()
        if self._lock is not None:
            self._lock.release()
        self._lock, self._lock_identity = lock, _identity(self.path / LOCK)

    def _describe(self) -> None:
        for name, content in self._description.items():
            if not (self.path / name).exists():
                write_bytes(self.path / name, content)


def ensure(path: Path) -> None:
    """Calls `OwnFolder.ensure` if this process trains, or has trained, a run in this folder."""
    folder = _known.get(path.absolute())
    if folder is not None:
        folder.ensure()


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = os.stat(path)
    except FileNotFoundError:
        return None
    return status.st_dev, status.st_ino
