"""The memory of this machine and of its processes, as Linux tells it. Imports no TensorFlow."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
# The limit of a control group, and what it uses: version 2, version 1.
_GROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)


def free(proc: Path = _PROC, cgroup: Path = _CGROUP) -> int | None:
    """The bytes that processes can still take without swapping; None if it is not known.

    A container may have less than its machine.
    """
    of_machine = _number(proc / "meminfo", "MemAvailable:")
    found = [] if of_machine is None else [of_machine * 1024]
    for limit_file, usage_file, stat_file, reclaimable in _GROUP_FILES:
        with contextlib.suppress(OSError, ValueError):
            limit = int((cgroup / limit_file).read_text())
            used = int((cgroup / usage_file).read_text())
            cached = _number(cgroup / stat_file, reclaimable) or 0
            found.append(max(0, limit - used + cached))
    return min(found, default=None)


def resident(pid: int | str = "self") -> int:
    """The bytes of memory that a process uses now; 0 if it has ended."""
    return (_number(_PROC / str(pid) / "status", "VmRSS:") or 0) * 1024


def peak() -> int:
    """The most bytes that this process used since its start, or since `reset_peak`."""
    return (_number(_PROC / "self/status", "VmHWM:") or 0) * 1024


def reset_peak() -> None:
    """Starts `peak` again, where the kernel allows that."""
    with contextlib.suppress(OSError):
        descriptor = os.open(_PROC / "self/clear_refs", os.O_WRONLY)
        try:
            os.write(descriptor, b"5")
        finally:
            os.close(descriptor)


def _number(path: Path, name: str) -> int | None:
    """The number that follows a name in a file."""
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return None
    words = [line.split() for line in lines]
    return next((int(each[1]) for each in words if each[:1] == [name]), None)
