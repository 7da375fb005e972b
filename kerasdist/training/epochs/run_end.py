"""What the folder of a run says when the run ends: why it stopped, and its report."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from kerasdist.errors import DivergedError, KerasdistError, RunFailedError, first_line
from kerasdist.phases.phase import phase
from kerasdist.reports.live import write_report
from kerasdist.runs.file_names import REPORT
from kerasdist.runs.folder import RunFolder
from kerasdist.runs.lock import RunLockedError
from kerasdist.training.epochs.signals import LostReaderError, Terminated, is_after_end, title
from kerasdist.training.progress.reporter import Reporter


@contextlib.contextmanager
def result_of_a_stop(folder: RunFolder) -> Iterator[None]:
    """Writes into result.json why a run ended early; removes the folder if it never began."""
    try:
        yield
    except (KeyboardInterrupt, Terminated, LostReaderError) as error:
        if not is_after_end(error):
            _stop(folder, "interrupted", title(error))
        raise
    except DivergedError as error:
        _stop(folder, "diverged", str(error))
        raise
    except RunLockedError:
        raise  # Another process uses the folder.
    except RunFailedError as error:
        _stop(folder, "failed", str(error))
        raise
    except KerasdistError:
        folder.discard()
        raise
    except Exception as error:
        _stop(folder, "failed", f"{type(error).__name__}: {error}")
        raise


def _stop(folder: RunFolder, status: str, error: str) -> None:
    folder.stop(status, error)
    write_report(folder.path, status=status)


@contextlib.contextmanager
def report_at_the_end(reporter: Reporter, path: Path) -> Iterator[None]:
    """Writes the report of a finished run. An error in the block only gives a warning."""
    write_report(path, status="finished")  # At once, in case the process is killed in the block.
    try:
        yield
    except KeyboardInterrupt:
        reporter.warn("interrupted: the report has no confusion matrix and no examples")
    except Exception as error:  # noqa: BLE001 - the run itself is finished
        reporter.warn(f"the report has no confusion matrix and no examples: {first_line(error)}")
    with phase("writing the report"):
        is_written = write_report(path, status="finished")
    if not is_written:
        reporter.warn(f"{path / REPORT} could not be written")
