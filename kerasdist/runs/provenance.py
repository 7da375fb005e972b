"""What a run was made with: versions, devices, the commit. No variables, no names of people."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = ("kerasdist", "tensorflow", "keras", "numpy", "tensorflow-datasets", "h5py")
_GIT_SECONDS = 2.0


def describe(devices: Sequence[str], code: str | os.PathLike = ".") -> dict[str, Any]:
    """One start of a run.

    Args:
        devices: Names of the devices it uses.
        code: A folder; the commit is that of the repository it lies in.

    Example:
        >>> sorted(describe(["CPU:0"]))
        ['cpus', 'devices', 'git', 'machine', 'packages', 'platform', 'python', 'time']
    """
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "devices": list(devices),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": _num_cpus(),
        "git": _git(Path(code)),
    }


def _num_cpus() -> int | None:
    """Those that this process may use, where the system says so."""
    usable = getattr(os, "sched_getaffinity", None)
    return len(usable(0)) if usable else os.cpu_count()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(folder: Path) -> dict[str, Any] | None:
    """The commit, and whether tracked files differ from it; None where there is no repository."""
    commit = _ask_git(folder, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _ask_git(folder, "status", "--porcelain", "--untracked-files=no")
    return {"commit": commit, "changed": None if changes is None else bool(changes)}


def _ask_git(folder: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *words],
            capture_output=True,
            text=True,
            timeout=_GIT_SECONDS,
            # Not the caller's repository, if this runs in one of its hooks.
            env={k: v for k, v in os.environ.items() if not k.startswith("GIT_")},
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None
