"""The lock of a run: at most one process trains it.

The lock is the kernel's (`flock`), on the file `lock` in the run's folder. It ends with its
process, however that ends, so no stale lock is left behind. The content of the file says who holds
the lock, for people and for the error message. The file itself stays: a second process may have
opened it just before it was removed, and would then lock a file that nobody else can see.

On file systems without `flock` the content decides. The lock is held while the process it names is
alive on the same host. A process on another host cannot be checked, so it counts as alive until
somebody removes the file.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import secrets
import socket
import threading
import time
import weakref
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from kerasdist.errors import KerasdistError
from kerasdist.runs.file_names import LOCK

_NO_FLOCK = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_BEGINNING = b'{"host": '
# How long to wait for a holder that is just writing its name.
_PATIENCE_SECONDS = 0.5
# Without `flock`: after this time it is clear which of two processes wrote last.
_SETTLE_SECONDS = 0.2

# Tokens of the locks that this process holds or is acquiring. The process id alone is not enough:
# in a container, a dead process may have had the same id.
_own_tokens: set[str] = set()
_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


class RunLockedError(KerasdistError):
    """Another process holds the run."""

    def __init__(self, message: str, *, host: str | None, pid: int | None):
        super().__init__(message)
        self.host = host
        self.pid = pid


class RunLock:
    """Holds a run's folder for this process, until `release` or the end of the process.

    Args:
        folder: The run's folder, which must exist.

    Example:
        >>> import tempfile
        >>> with RunLock(tempfile.mkdtemp()) as lock:
        ...     lock.held
        True
        >>> lock.held
        False
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        self._path = self.folder / LOCK
        self._file: int | None = None
        self._token = ""
        self._by_content = False
        self._guard = threading.Lock()

    @property
    def held(self) -> bool:
        return self._file is not None

    def acquire(self) -> None:
        """Takes the lock, or raises `RunLockedError` with the host and process id of its holder."""
        with self._guard:
            if self._file is not None:
                return
            self._token = secrets.token_hex(8)
            _own_tokens.add(self._token)
            try:
                self._file = self._acquire()
            except OSError as error:
                raise KerasdistError(
                    f"The run {str(self.folder)!r} cannot be locked, because its file {LOCK!r} "
                    f"cannot be used: {error.strerror}. Expected a writable folder. Choose another "
                    "one."
                ) from None
            finally:
                if self._file is None:
                    _own_tokens.discard(self._token)
            _held.add(self)

    def release(self) -> None:
        """Gives the lock back. Does nothing if it is not held."""
        with self._guard:
            if self._file is None:
                return
            with contextlib.suppress(OSError):
                if _read(self._file).get("token") == self._token:
                    os.ftruncate(self._file, 0)
            os.close(self._file)  # This releases the kernel's lock.
            self._forget()

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def _forget(self) -> None:
        self._file = None
        _own_tokens.discard(self._token)
        _held.discard(self)

    def _acquire(self) -> int:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while True:
            file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
            try:
                if self._take(file):
                    return file
                holder = _read(file)
            except BaseException:
                os.close(file)
                raise
            os.close(file)
            # If the file names nobody, or a dead process, the holder is about to write its name.
            if _may_hold(holder) or time.monotonic() > deadline:
                raise self._refusal(holder)
            time.sleep(0.02)

    def _take(self, file: int) -> bool:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in _NO_FLOCK:
                raise
            return self._take_by_content(file)
        if not self._is_there(file):
            return False
        self._check_file(file)
        # On a full disk the lock works all the same. Only the name of its holder is missing.
        with contextlib.suppress(OSError):
            self._write(file)
        return True

    def _take_by_content(self, file: int) -> bool:
        self._by_content = True
        self._check_file(file)
        if _may_hold(_read(file)):
            return False
        self._write(file)
        time.sleep(_SETTLE_SECONDS)
        return _read(file).get("token") == self._token

    def _is_there(self, file: int) -> bool:
        """Whether the locked file is still the one that other processes would open."""
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(file), os.lstat(self._path))
        return False

    def _check_file(self, file: int) -> None:
        """Refuses to overwrite a file called `lock` that kerasdist did not write."""
        content = os.pread(file, 4096, 0).strip(b"\0\n ")  # Zeros: after a power failure.
        if content and not content.startswith(_BEGINNING):
            raise KerasdistError(
                f"The folder {str(self.folder)!r} has a file {LOCK!r} that kerasdist did not "
                "write. Expected the folder of a run. Choose another folder, or move that file."
            )

    def _write(self, file: int) -> None:
        content = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "started": datetime.now(UTC).isoformat(timespec="seconds"),
            "token": self._token,
        }
        os.ftruncate(file, 0)
        os.pwrite(file, json.dumps(content).encode() + b"\n", 0)

    def _refusal(self, holder: dict[str, Any]) -> RunLockedError:
        host, pid = holder.get("host"), holder.get("pid")
        who = f"process {pid} on host {host!r}" if holder else "another process"
        fix = "Wait until that process ends, stop it, or choose another run."
        if self._by_content:
            fix += f" If it has already ended, remove {str(self._path)!r}."
        return RunLockedError(
            f"The run {str(self.folder)!r} is in use by {who}. Expected a run that no other "
            f"process uses. {fix}",
            host=host,
            pid=pid,
        )


def is_locked(folder: Path) -> bool:
    """Whether a process holds a run's lock. Changes nothing in the folder."""
    try:
        file = os.open(folder / LOCK, os.O_RDONLY)
    except OSError:
        return False
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # A file system without `flock`.
        with contextlib.suppress(OSError):
            return _may_hold(_read(file))
    finally:
        os.close(file)
    return False


def is_alive(pid: int) -> bool:
    """Whether a process with this id runs on this machine."""
    if pid <= 0:  # For `kill`, these are groups of processes.
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Whether a process has ended but keeps its id, because its parent has not waited for it."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # This system has no /proc.
        return False
    # The process's name, in parentheses, may itself hold spaces and parentheses.
    return stat.rpartition(")")[2].split()[0] in "ZX"


def _read(file: int) -> dict[str, Any]:
    """Who holds the lock; an empty dict if the file does not say."""
    try:
        content = json.loads(os.pread(file, 4096, 0))
    except ValueError:
        return {}
    if isinstance(content, dict) and isinstance(content.get("pid"), int) and "host" in content:
        return content
    return {}


def _may_hold(holder: dict[str, Any]) -> bool:
    if not holder:
        return False
    if holder["host"] != socket.gethostname():
        return True
    if holder["pid"] == os.getpid():
        return holder.get("token") in _own_tokens
    return is_alive(holder["pid"])


def _leave_to_parent() -> None:
    """Closes the locks that a forked child inherited: it would hold them longer than its parent."""
    for lock in list(_held):
        if lock._file is not None:
            os.close(lock._file)
        lock._forget()


os.register_at_fork(after_in_child=_leave_to_parent)
