"""`kerasdist doctor --gpu`: processes that hang or crash, and machines without a GPU.

tests/gpu/test_gpu_report.py runs all of it on fake GPUs.
"""

import json
import sys
import time

import pytest

from kerasdist.cli.gpu_report import command as gpu_report
from kerasdist.cli.gpu_report.plan import Plan
from kerasdist.cli.gpu_report.worker import CHECKS

# A worker whose checks do what their names say.
WORKER = """
import json, os, sys, time
for name in sys.argv[1:]:
    if name == "hang":
        time.sleep(1000)
    elif name == "abort":
        print("LLVM ERROR: no", file=sys.stderr, flush=True)
        os.abort()
    elif name == "exit":
        sys.exit(3)
    print(json.dumps([{"name": name, "text": "done", "values": {"a": 1}}]), flush=True)
"""


@pytest.fixture
def worker(monkeypatch):
    monkeypatch.setattr(gpu_report, "WORKER", [sys.executable, "-c", WORKER])


def examine(*groups, **limits):
    _versions, *others = gpu_report.examine(Plan(groups, **limits))
    return {finding.name: finding for finding in others}


def test_every_check_is_planned_once():
    names = [name for group in Plan().groups for name in group]
    assert sorted(names) == sorted(CHECKS)


def test_a_check_that_hangs_is_killed_and_the_others_still_run(worker):
    began = time.monotonic()
    found = examine(["one", "hang", "two"], ["three"], check_seconds=1, start_seconds=10)
    assert time.monotonic() - began < 60
    assert list(found) == ["one", "hang", "two", "three"]
    assert found["hang"].text == "no answer after 1 s: it hangs"
    assert [name for name in found if found[name].is_failure] == ["hang"]


def test_a_check_that_ends_its_process_is_told_and_the_others_still_run(worker):
    found = examine(["abort", "exit", "two"])
    assert found["abort"].text == "its process ended by SIGABRT: LLVM ERROR: no"
    assert found["exit"].text == "its process ended with exit code 3"
    assert found["two"].text == "done"


def test_checks_that_have_no_time_left_are_named(worker):
    found = examine(["one"], ["two"], total_seconds=0)
    assert [finding.text for finding in found.values()] == ["not run: 0 s are over"] * 2


@pytest.fixture
def as_if_there_was_a_gpu(monkeypatch, worker):
    monkeypatch.setattr(gpu_report, "check_there_is_a_gpu", lambda: None)
    monkeypatch.setattr(gpu_report, "Plan", lambda: Plan([["one", "exit"]]))


def test_the_report_is_printed_and_written(command, tmp_path, as_if_there_was_a_gpu):
    done = command("doctor", "--gpu", "--output", "report.jsonl")
    assert done.code == 1
    assert done.lines[1:4] == [
        "✓ one: done",
        "✗ exit: its process ended with exit code 3",
        "  Send this report: docs/gpus.md says where to.",
    ]
    assert done.lines[-1].startswith("3 findings in ")
    assert done.lines[-1].endswith(" s; the report is in report.jsonl")
    written = [json.loads(line) for line in (tmp_path / "report.jsonl").read_text().splitlines()]
    assert [item["name"] for item in written] == ["versions", "one", "exit"]
    assert written[1] == {
        "ok": True,
        "name": "one",
        "text": "done",
        "fix": None,
        "is_needed": True,
        "values": {"a": 1},
    }
    assert command("doctor", "--gpu", "--json").objects[1:] == written[1:]
    assert command("doctor", "--gpu", "--quiet").lines == done.lines[2:4]


def test_without_a_gpu_it_says_so(command, monkeypatch):
    monkeypatch.setattr(gpu_report.tf.config, "list_physical_devices", lambda kind=None: [])
    done = command("doctor", "--gpu")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "kerasdist: `kerasdist doctor --gpu` needs a GPU, and TensorFlow sees none. Run it on a "
        "machine with a GPU. `kerasdist doctor` without `--gpu` checks this one.\n"
    )
    monkeypatch.setattr(gpu_report.gpus, "unusable_gpus", lambda: "Update the driver.")
    assert command("doctor", "--gpu").err.endswith("sees none. Update the driver.\n")


def test_a_file_without_a_report_is_refused(command):
    done = command("doctor", "--output", "report.jsonl")
    assert done.code == 2
    assert done.err == (
        "kerasdist: Received `--output report.jsonl` without `--gpu`. Expected both, because the "
        "file holds the report on the GPUs. Add `--gpu`, or remove `--output`.\n"
    )
