"""Real workers for tests: processes that train a small recipe, and what they leave behind."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kerasdist.runs.lock import is_alive

ROOT = Path(__file__).resolve().parents[2]
FIT = ("--deterministic", "--shards", "4", "--save-every", "5")


def environment(**more):
    kept = {k: v for k, v in os.environ.items() if k not in ("KERASDIST_LOGICAL_CPUS", "TF_CONFIG")}
    return {**kept, "PYTHONPATH": str(ROOT), **more}


def kerasdist(*argv, **more):
    """A command in a process of its own, which has begun."""
    return subprocess.Popen(
        [sys.executable, "-m", "kerasdist", *map(str, argv)],
        env=environment(**more),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process, seconds=240):
    """Its output and exit code; nothing that it started is left."""
    own = descendants(process.pid)
    try:
        output, _ = process.communicate(timeout=seconds)
    finally:
        process.kill()
    deadline = time.monotonic() + 10
    while (left := [pid for pid in own if is_alive(pid)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not left, output
    return output, process.returncode


def descendants(pid):
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in task.read_text().split():
            found += [int(child), *descendants(int(child))]
    return found


def workers_of(process, count=2):
    """The process ids of the workers of a launcher, by index."""
    found = {}
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        for pid in descendants(process.pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
                environ = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            task = re.search(rb'TF_CONFIG=.*?"index": (\d+)', environ)
            if task and b"fit" in words:
                found[int(task[1])] = pid
        time.sleep(0.05)
    return found


def wait_for_steps(run, process, count=2, seconds=120):
    """Until so many lines of a run are logged."""
    deadline = time.monotonic() + seconds
    path = run / "metrics.jsonl"
    while time.monotonic() < deadline and process.poll() is None:
        if path.is_file() and len(path.read_text().splitlines()) >= count:
            return
        time.sleep(0.02)
    pytest.fail(f"no step: {process.communicate(timeout=20)[0] if process.poll() else ''}")


def connects(host, port):
    try:
        socket.create_connection((host, port), 0.5).close()
    except OSError:
        return False
    return True


def result(run):
    return json.loads((run / "result.json").read_text())


def trained(run):
    """The weights of a run, with what was logged of them, on one or several workers."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    clock = ("examples_per_second", "input_wait")
    logged = [{k: v for k, v in line.items() if k not in clock} for line in lines]
    assert result(run)["status"] == "finished"
    return result(run)["weights_sha256"], logged
