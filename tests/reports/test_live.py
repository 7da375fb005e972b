"""Writing report.html, also while a run trains."""

import doctest
import errno
import os
import subprocess
import sys

import pytest

from kerasdist.reports import comparison, html, live, page, plots, program_settings
from kerasdist.reports.live import LiveReport, write_report
from tests import run_folders


def test_a_page_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    assert not write_report(tmp_path / "gone")
    folder = run_folders.finished(tmp_path / "run")
    before = sorted(os.listdir(folder))

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "replace", full)
    assert not write_report(folder)
    assert sorted(os.listdir(folder)) == before  # No draft takes room.


def test_a_page_that_cannot_be_made_is_no_error(tmp_path, monkeypatch):
    monkeypatch.setattr(page, "render", lambda run: 1 / 0)
    assert not write_report(run_folders.finished(tmp_path / "run"))


def test_pages_during_a_run_take_next_to_none_of_its_time(tmp_path, monkeypatch):
    now = 0.0
    written = []

    def write(folder, status):
        nonlocal now
        now += 1.0  # A page takes a second, an epoch ten.
        written.append(now)
        return True

    monkeypatch.setattr(live, "write_report", write)
    report = LiveReport(tmp_path, clock=lambda: now)
    for _ in range(1000):
        now += 10.0
        report.write()
    assert 40 <= len(written) <= 51


def test_reports_are_written_without_tensorflow():
    program = (
        "import sys, kerasdist.reports.live, kerasdist.cli.commands.runs\n"
        "print({'tensorflow', 'keras', 'numpy', 'rich'} & set(sys.modules))"
    )
    variables = {k: v for k, v in os.environ.items() if k != "KERASDIST_LOGICAL_CPUS"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True
    )
    assert done.stdout == "set()\n", done.stderr


@pytest.mark.parametrize(
    "module", [live, html, plots, comparison, program_settings], ids=lambda m: m.__name__
)
def test_examples_of_docstrings_run(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
