"""Which processes of this machine are alive."""

from __future__ import annotations

import os
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether a process of this machine has this id and still runs."""
    if pid <= 0:  # To `kill` these mean groups of processes.
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """A killed process whose parent never asks for its end keeps its id, and does nothing."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:  # No /proc here.
        return False
    # The name, in parentheses, may itself hold spaces and parentheses.
    return stat.rpartition(")")[2].split()[0] in "ZX"
