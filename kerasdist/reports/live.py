"""Pages about runs: report.html of one, and a comparison of several. Files in, HTML out."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from kerasdist.reports import page
from kerasdist.runs import ownership, reading
from kerasdist.runs.atomic import write_text
from kerasdist.runs.folder import REPORT

# Of a run's time, this share may go into pages that are written while it trains.
_MOST_SHARE = 0.005


def write(run_folder: Path, *, status: str | None = None) -> bool:
    """Writes report.html of a run from the files in its folder.

    A page that cannot be written (a full disk, a folder that is gone) stops no training: the
    caller may say so.

    Args:
        run_folder: The run's folder.
        status: How the run stands, if the caller knows better than its files.

    Returns:
        Whether it was written.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write(folder), (folder / "report.html").is_file()
        (True, True)
    """
    try:
        ownership.ensure(run_folder)
        text = page.render(reading.read(run_folder, status=status))
        write_text(run_folder / REPORT, text)
    except Exception:  # noqa: BLE001 - whatever it is, the training matters more than its page
        return False
    return True


class Live:
    """Writes the report of a run while it trains, as often as costs next to nothing.

    A page takes longer the more was logged: short epochs would have it written all the time.

    Args:
        run_folder: The run's folder.
        clock: Seconds, for tests.
    """

    def __init__(self, run_folder: Path, clock: Callable[[], float] = time.perf_counter):
        self._folder, self._clock = run_folder, clock
        self._spent = 0.0
        self._began = clock()

    def write(self) -> None:
        """Writes it, unless that has taken too much of the time so far."""
        began = self._clock()
        if self._spent > _MOST_SHARE * (began - self._began):
            return
        write(self._folder, status="running")
        self._spent += self._clock() - began
