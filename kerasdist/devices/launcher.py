"""Starts the workers of a run as processes, watches them, and restarts them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from kerasdist.devices import gpu_shares
from kerasdist.devices.cluster import LIFELINE, REPORT, TIMEOUT, Cluster
from kerasdist.devices.ports import free_ports

_POLL_SECONDS = 0.05
# Workers that notice a failure end by themselves. They get this long.
_GRACE_SECONDS = 15.0
# A restart cannot fix these: usage error, NaN, SIGHUP, Ctrl-C, SIGTERM.
_FINAL_CODES = (2, 3, 129, 130, 143)
_TAIL_LINES = 15
# The program of a worker. Its command, `fit` or `run`, and that command's arguments follow.
WORKER = [sys.executable, "-m", "kerasdist"]


@dataclass(frozen=True)
class Start:
    """Which workers to start: this machine's worker of a cluster, or several on this machine."""

    timeout: float
    cluster: Cluster | None = None
    num_local: int = 1

    def members(self) -> list[Cluster]:
        """One `Cluster` per worker. Each call chooses free ports for workers on this machine."""
        if self.cluster is not None:
            return [dataclasses.replace(self.cluster, timeout=self.timeout)]
        hosts = tuple(f"127.0.0.1:{port}" for port in free_ports(self.num_local))
        return [Cluster(hosts, i, self.timeout) for i in range(self.num_local)]


@dataclass
class _Worker:
    cluster: Cluster
    process: subprocess.Popen[bytes]
    output: IO[bytes] | None

    @property
    def name(self) -> str:
        return self.cluster.name(self.cluster.index)

    def tail(self) -> str:
        """The last lines that the worker printed, if they did not go to the terminal."""
        if self.output is None:
            return ""
        self.output.seek(0)
        lines = self.output.read().decode(errors="replace").splitlines()
        noise = ("WARNING: All log messages before", "I0000", "W0000", "E0000")
        return "\n".join([line for line in lines if not line.startswith(noise)][-_TAIL_LINES:])


@dataclass
class _Reports:
    """What the workers sent to the launcher: the run's folder, lost workers, and messages."""

    run: str | None = None
    lost: list[int] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    senders: list[int] = field(default_factory=list)


class _Signals:
    """Collects Ctrl-C and SIGTERM. The first one lets the workers save, the second kills them."""

    def __init__(self) -> None:
        self.received: list[int] = []

    @contextlib.contextmanager
    def watching(self) -> Iterator[_Signals]:
        numbers = (signal.SIGTERM, signal.SIGINT)
        before = {
            n: signal.signal(n, lambda number, _: self.received.append(number)) for n in numbers
        }
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def supervise(
    start: Start, arguments: Sequence[str], devices: str = "auto", max_restarts: int = 0
) -> int:
    """Runs a command on the workers until it ends, and returns the exit code.

    Args:
        start: Which workers to start.
        arguments: The command, `fit` or `run`, and its arguments.
        devices: The value of `--devices` in them.
        max_restarts: How often to restart the workers from the last checkpoint if one is lost.
    """
    arguments = list(arguments)
    with _Signals().watching() as signals:
        for restart in range(max_restarts + 1):
            attempt = _Attempt(start, arguments, devices)
            try:
                code = attempt.run(signals)
            finally:
                attempt.end()
            is_last = restart == max_restarts
            if code in (0, *_FINAL_CODES) or signals.received or is_last:
                return code
            arguments = _to_resume(arguments, attempt.reports.run)
            _say(f"restarting from the last checkpoint ({restart + 1} of {max_restarts})")
    return 1


def _to_resume(arguments: list[str], run: str | None) -> list[str]:
    """The arguments that resume `run`; unchanged if no run had begun."""
    if run is None:
        return arguments
    kept: list[str] = []
    rest = iter(arguments)
    for argument in rest:
        name = argument.replace("_", "-")
        if name == "--run-dir":
            next(rest, None)
        elif name not in ("--resume", "--no-resume") and not name.startswith("--run-dir="):
            kept.append(argument)
    return [*kept, "--run-dir", run]


class _Attempt:
    """The workers from one start until all have ended."""

    def __init__(self, start: Start, arguments: list[str], devices: str):
        members, timeout = start.members(), start.timeout
        shares = _gpu_shares(start, members, devices)
        self.reports = _Reports()
        self._timeout = timeout
        self._ended: dict[int, int] = {}
        self._text = b""
        self._pipe, writing = os.pipe()
        os.set_blocking(self._pipe, False)
        # Nobody writes to it. It closes when this process dies, and then the workers end.
        line, self._lifeline = os.pipe()
        self._workers: list[_Worker] = []
        try:
            for i, member in enumerate(members):
                environ = {
                    **os.environ,
                    "TF_CONFIG": member.tf_config(),
                    TIMEOUT: f"{timeout:g}",
                    REPORT: str(writing),
                    LIFELINE: str(line),
                    **({} if (own := shares[i]) is None else {gpu_shares.VISIBLE: ",".join(own)}),
                }
                self._workers.append(_begin(member, arguments, environ, (writing, line), i > 0))
        finally:
            os.close(writing)
            os.close(line)

    def run(self, signals: _Signals) -> int:
        """Waits until all workers have ended, and explains a failure. Returns the exit code."""
        passed_on, deadline = 0, None
        first: tuple[_Worker, int] | None = None
        while len(self._ended) < len(self._workers):
            time.sleep(_POLL_SECONDS)
            self._read()
            if len(signals.received) > passed_on:
                number = signals.received[passed_on] if not passed_on else signal.SIGKILL
                passed_on = len(signals.received)
                self._send(number)
            failed = self._reap()
            if first is None and failed:
                first = failed[0]
                patience = self._timeout if first[1] in _FINAL_CODES else _GRACE_SECONDS
                deadline = time.monotonic() + patience
            # Only lost workers are left: they cannot end by themselves.
            is_hopeless = first is not None and self._left() <= set(self.reports.lost)
            if deadline is not None and (is_hopeless or time.monotonic() > deadline):
                self._send(signal.SIGKILL)
                deadline = None
        self._read()
        if first is None:
            return 0
        return self._explain(*first)

    def _left(self) -> set[int]:
        """Indices of the workers that still run."""
        return {
            worker.cluster.index for i, worker in enumerate(self._workers) if i not in self._ended
        }

    def _reap(self) -> list[tuple[_Worker, int]]:
        """Workers that have failed since the last call, the likeliest causes first."""
        failed = []
        for i, worker in enumerate(self._workers):
            code = worker.process.poll()
            if code is not None and i not in self._ended:
                self._ended[i] = code
                if code:
                    failed.append((worker, code))
        return sorted(failed, key=lambda pair: pair[1])

    def _explain(self, worker: _Worker, code: int) -> int:
        """Prints why the run failed, if no worker has printed it. Returns the exit code."""
        has_said = bool(self.reports.messages) or any(
            each.output is None and self._ended[i] > 0 for i, each in enumerate(self._workers)
        )
        if code == -signal.SIGTERM:
            return 128 + signal.SIGTERM
        if code < 0 and worker.cluster.index not in self.reports.senders:
            name = signal.Signals(-code).name
            _say(f"{worker.name}, process {worker.process.pid}, was killed by {name}")
        elif worker.output is not None and not has_said:
            _say(f"{worker.name} ended with exit code {code}:\n{worker.tail()}")
        return max(code, 1)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while content := os.read(self._pipe, 65536):
                self._text += content
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            fields = json.loads(line)
            self.reports.run = fields.get("run", self.reports.run)
            self.reports.lost += fields.get("lost", [])
            if "message" in fields:
                if not self.reports.messages:  # At once: it can take long until all have ended.
                    _say(fields["message"])
                self.reports.messages.append(fields["message"])
                self.reports.senders.append(fields["by"])

    def _send(self, number: int) -> None:
        for worker in self._workers:
            if worker.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    # The whole process group: a recipe may have started more processes.
                    if number == signal.SIGKILL:
                        os.killpg(worker.process.pid, number)
                    else:
                        worker.process.send_signal(number)

    def end(self) -> None:
        """Kills all workers that still run, and closes files."""
        self._send(signal.SIGKILL)
        for worker in self._workers:
            worker.process.wait()
            if worker.output is not None:
                worker.output.close()
        os.close(self._lifeline)
        os.close(self._pipe)


def _begin(
    member: Cluster,
    arguments: list[str],
    environ: Mapping[str, str],
    passed: tuple[int, int],
    is_quiet: bool,
) -> _Worker:
    output = tempfile.TemporaryFile() if is_quiet else None  # noqa: SIM115 - `end` closes it
    process = subprocess.Popen(
        [*WORKER, *arguments],
        env=environ,
        pass_fds=passed,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        # Ctrl-C then reaches only the launcher, which sends it to each worker once.
        start_new_session=True,
    )
    return _Worker(member, process, output)


def _gpu_shares(start: Start, members: Sequence[Cluster], devices: str) -> list[list[str] | None]:
    """The GPUs of each worker; None for a worker that keeps what this process sees."""
    if start.cluster is not None:
        return [gpu_shares.share_of_launched(member, devices) for member in members]
    gpus = gpu_shares.visible_gpus()
    if len(members) == 1 or not gpus or gpu_shares.names_cpus(devices):
        return [None] * len(members)
    # Without Slurm's variables, which number the launchers and not these workers.
    return [gpu_shares.share_of(member, gpus, {}) for member in members]


def _say(text: str) -> None:
    print(f"kerasdist: {text}", file=sys.stderr, flush=True)
