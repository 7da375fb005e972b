"""Writes report.html of a run: at its end, and from time to time while it trains."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from kerasdist.reports import page
from kerasdist.runs import ownership, reading
from kerasdist.runs.atomic import write_text
from kerasdist.runs.file_names import REPORT

# The share of a run's time that may go into pages written while it trains.
_MOST_SHARE = 0.005


def write_report(run_folder: Path, *, status: str | None = None) -> bool:
    """Writes report.html from the files in a run's folder.

    A page that cannot be written (a full disk, a missing folder) does not stop the training. The
    caller may warn about it.

    Args:
        run_folder: The run's folder.
        status: The run's status, if the caller knows better than the files.

    Returns:
        Whether it was written.

    Example:
        >>> import tempfile
        >>> folder = Path(tempfile.mkdtemp())
        >>> write_report(folder), (folder / "report.html").is_file()
        (True, True)
    """
    try:
        ownership.ensure(run_folder)
        text = page.render(reading.read(run_folder, status=status))
        write_text(run_folder / REPORT, text)
    except Exception:  # noqa: BLE001 - whatever fails, the training matters more than its page
        return False
    return True


class LiveReport:
    """Writes the report of a run while it trains, as often as costs almost nothing.

    A page takes longer to write the more was logged. With short epochs, writing it after each one
    would take most of the time.

    Args:
        run_folder: The run's folder.
        clock: Seconds, for tests.
    """

    def __init__(self, run_folder: Path, clock: Callable[[], float] = time.perf_counter):
        self._folder, self._clock = run_folder, clock
        self._spent = 0.0
        self._began = clock()

    def write(self) -> None:
        """Writes the page, unless pages have taken too much of the time so far."""
        began = self._clock()
        if self._spent > _MOST_SHARE * (began - self._began):
            return
        write_report(self._folder, status="running")
        self._spent += self._clock() - began
