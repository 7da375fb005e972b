"""`kerasdist doctor --gpu`: starts the processes that check the GPUs, and prints what they find."""

from __future__ import annotations

import contextlib
import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TextIO

import tensorflow as tf

from kerasdist.cli.findings import Finding, exit_code, show
from kerasdist.cli.gpu_report.plan import Plan
from kerasdist.devices import gpus
from kerasdist.errors import KerasdistError
from kerasdist.runs import provenance
from kerasdist.runs.atomic import as_json, write_text

WORKER = [sys.executable, "-m", "kerasdist.cli.gpu_report.worker"]
_SEND = "Send this report: docs/gpus.md says where to."


def gpu_report(options: dict[str, Any], plan: Plan | None = None) -> int:
    """`kerasdist doctor --gpu`."""
    check_there_is_a_gpu()
    began = time.monotonic()
    findings = show(examine(plan or Plan()), json=options["json"], quiet=options["quiet"])
    if options["output"] is not None:
        lines = [as_json(finding.fields()) + "\n" for finding in findings]
        write_text(Path(options["output"]), "".join(lines))
    if not options["json"] and not options["quiet"]:
        where = f"; the report is in {options['output']}" if options["output"] else ""
        print(f"{len(findings)} findings in {time.monotonic() - began:.0f} s{where}")
    return exit_code(findings)


def check_there_is_a_gpu() -> None:
    """Raises an error if TensorFlow sees no GPU. Does not start TensorFlow."""
    if tf.config.list_physical_devices("GPU"):
        return
    reason = gpus.unusable_gpus() or (
        "Run it on a machine with a GPU. `kerasdist doctor` without `--gpu` checks this one."
    )
    raise KerasdistError(
        f"`kerasdist doctor --gpu` needs a GPU, and TensorFlow sees none. {reason}"
    )


def examine(plan: Plan) -> Iterator[Finding]:
    """Runs the checks. What hangs is killed, and the next check starts in a new process."""
    facts = provenance.describe([])
    packages = ", ".join(f"{name} {version}" for name, version in facts["packages"].items())
    yield Finding(
        "versions",
        f"Python {facts['python']}, {packages}, {facts['platform']}, {facts['cpus']} CPU cores",
        values=facts,
    )
    end = time.monotonic() + plan.total_seconds
    for group in plan.groups:
        left = list(group)
        while left:
            if time.monotonic() >= end:
                for name in left:
                    yield Finding(name, f"not run: {plan.total_seconds:g} s are over", _SEND)
                break
            for findings in _answers(tuple(left), plan):
                left.pop(0)
                yield from findings


def _answers(names: Sequence[str], plan: Plan) -> Iterator[list[Finding]]:
    """The findings of each check in one process; ends after the first that hangs or crashes."""
    with tempfile.TemporaryFile("w+") as errors, _worker(names, errors) as process:
        lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=_read, args=(process.stdout, lines), daemon=True).start()
        for i, name in enumerate(names):
            seconds = plan.check_seconds + (plan.start_seconds if i == 0 else 0)
            try:
                line = lines.get(timeout=seconds)
            except queue.Empty:
                yield [Finding(name, f"no answer after {seconds:g} s: it hangs", _SEND)]
                return
            if not line:
                yield [Finding(name, _ending(process.wait(), errors), _SEND)]
                return
            yield [Finding(**content) for content in json.loads(line)]


@contextlib.contextmanager
def _worker(names: Sequence[str], errors: TextIO) -> Iterator[subprocess.Popen[str]]:
    command = [*WORKER, *names]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def _read(source: Any, lines: queue.Queue[str]) -> None:
    """Passes lines on; an empty one at the end."""
    for line in source:
        lines.put(line)
    lines.put("")


def _ending(code: int, errors: TextIO) -> str:
    """Says how a process ended."""
    how = f"with exit code {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
    errors.seek(0)
    lines = errors.read().strip().splitlines()
    return f"its process ended {how}" + (f": {lines[-1].strip()[:300]}" if lines else "")
