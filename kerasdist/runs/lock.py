"""Keeps two processes out of one run.

The lock is the kernel's (`flock`) on the file `lock` of the run's folder: it ends with the process,
however that ends, so that nothing stale is left to clean up. The file's content says who holds it,
for people and for the error message. The file itself stays: a second process may have opened it
just before it was removed, and would then lock a file that nobody else can see.

On file systems without `flock` the content decides: it holds while its process is alive on the same
host. A holder on another host cannot be asked, so it counts as alive until somebody removes the
file.
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
from kerasdist.runs.processes import is_alive

LOCK = "lock"
_NO_FLOCK = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
_BEGINNING = b'{"host": '
# How long to wait for the name of a holder that is just writing it.
_PATIENCE_SECONDS = 0.5
# Without `flock`, two that write in the same moment are told apart after this time.
_SETTLE_SECONDS = 0.2

# Tokens of the locks that this process holds or is about to: its own id in a file may also be
# that of a dead process, in a container above all.
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

    def __init__(self, folder: str | os.PathLike):
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
                    f"Received the run {str(self.folder)!r}, whose file {LOCK!r} cannot be used: "
                    f"{error.strerror}. Expected a folder one can write to. Choose another."
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
            os.close(self._file)  # Which gives the lock back.
            self._forget()

    def __enter__(self) -> RunLock:
        self.acquire()
        return self

    def __exit__(self, *exception: Any) -> None:
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
            # No name yet, or that of a dead one: the holder is about to write its own.
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
        self._check_ours(file)
        # A full disk: the lock holds all the same, only its holder has no name.
        with contextlib.suppress(OSError):
            self._write(file)
        return True

    def _take_by_content(self, file: int) -> bool:
        self._by_content = True
        self._check_ours(file)
        if _may_hold(_read(file)):
            return False
        self._write(file)
        time.sleep(_SETTLE_SECONDS)
        return _read(file).get("token") == self._token

    def _is_there(self, file: int) -> bool:
        """Whether the locked file still is the one that others would open."""
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(file), os.lstat(self._path))
        return False

    def _check_ours(self, file: int) -> None:
        """Somebody's own file called `lock` is not overwritten."""
        content = os.pread(file, 4096, 0).strip(b"\0\n ")  # Zeros: after a loss of power.
        if content and not content.startswith(_BEGINNING):
            raise KerasdistError(
                f"Received the run {str(self.folder)!r}, whose file {LOCK!r} is not kerasdist's. "
                "Expected a run's folder. Name one, or move that file elsewhere."
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
        fix = "Wait until that one ends, stop it, or name another run."
        if self._by_content:
            fix += f" If it has ended without saying so, remove {str(self._path)!r}."
        return RunLockedError(
            f"Received the run {str(self.folder)!r}, which is in use by {who}. "
            f"Expected a run that no other process uses. {fix}",
            host=host,
            pid=pid,
        )


def _read(file: int) -> dict[str, Any]:
    """Who holds the lock; nothing if the file does not say."""
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
    """A forked child has a copy of the descriptor, which would hold the lock after the parent."""
    for lock in list(_held):
        if lock._file is not None:
            os.close(lock._file)
        lock._forget()


os.register_at_fork(after_in_child=_leave_to_parent)
