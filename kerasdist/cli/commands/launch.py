"""`kerasdist launch`: starts the workers of a run, watches them, and starts them again."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from kerasdist.cli import fit_arguments, options
from kerasdist.cli.parser import Option, Options
from kerasdist.devices import cluster as clusters
from kerasdist.devices.cluster import Cluster
from kerasdist.errors import KerasdistError

_SECONDS = 0.05
# Workers that have noticed a failure end by themselves; so long they may take for it.
_GRACE_SECONDS = 15.0
# Nothing that another start could mend: usage, a NaN, Ctrl-C, SIGTERM.
_FINAL_CODES = (2, 3, 130, 143)
_TAIL_LINES = 15
# What a worker is, but for the arguments of `fit`.
WORKER = [sys.executable, "-m", "kerasdist", "fit"]
_USAGE = "kerasdist launch [options] fit RECIPE"

LAUNCH_OPTIONS: Options = {
    "workers": Option(
        int | None,
        None,
        "processes to start on this machine, which share out its GPUs",
        expected="a whole number of at least 1",
        example="2",
        valid=lambda value: value >= 1,
    ),
    "hosts": Option(
        str | None,
        None,
        "addresses of all workers, a:2222,b:2222; the first one is the chief",
        example="a:2222,b:2222",
    ),
    "index": Option(int | None, None, "place of this machine in --hosts, from 0"),
    "max_restarts": Option(
        int,
        0,
        "how often workers are started again, from the last checkpoint, when one is lost",
        expected="a whole number from 0 on",
        example="3",
        valid=lambda value: value >= 0,
    ),
    "worker_timeout": Option(
        float,
        clusters.DEFAULT_TIMEOUT,
        "seconds after which a worker that is missing, stopped or out of reach is named",
        expected="a number of seconds of at least 2",
        example="60",
        valid=lambda value: value >= 2,
    ),
}


def launch(argv: list[str]) -> int:
    """`kerasdist launch [options] fit RECIPE [options]`."""
    own, command = _apart(argv)
    values = options.parse_options(LAUNCH_OPTIONS, own, _USAGE)
    if not command or command[0] != "fit":
        received = repr(command[0]) if command else "no command"
        raise KerasdistError(
            f"Received {received} to launch. Expected `{_USAGE}`. Only `fit` runs on several "
            "workers: name it after the options of launch."
        )
    start = _start_of(values)
    fit_arguments.parse_fit(
        command[1:], "kerasdist fit"
    )  # Its mistakes are told once, not by each.
    return supervise(start, command[1:], values["max_restarts"])


def _apart(argv: list[str]) -> tuple[list[str], list[str]]:
    """The options of launch, and the command after them."""
    rest = iter(range(len(argv)))
    known = {f"--{name.replace('_', '-')}" for name in LAUNCH_OPTIONS}
    for i in rest:
        if not argv[i].startswith("-"):
            return argv[:i], argv[i:]
        if argv[i].replace("_", "-") in known:
            next(rest, None)
    return argv, []


@dataclass(frozen=True)
class Start:
    """Which workers this launcher starts: one of a known cluster, or several on this machine."""

    timeout: float
    cluster: Cluster | None = None
    num_local: int = 1

    def members(self) -> list[Cluster]:
        """Called for each start: local ones get ports that are free now."""
        if self.cluster is not None:
            return [dataclasses.replace(self.cluster, timeout=self.timeout)]
        hosts = tuple(f"127.0.0.1:{port}" for port in _free_ports(self.num_local))
        return [Cluster(hosts, i, self.timeout) for i in range(self.num_local)]


def _start_of(values: Mapping[str, Any]) -> Start:
    timeout = values["worker_timeout"]
    if values["hosts"] is None and values["index"] is not None:
        raise KerasdistError(
            f"Received `--index {values['index']}` without `--hosts`. Expected the addresses that "
            "it counts. Add for example `--hosts a:2222,b:2222`."
        )
    if values["workers"] is not None and values["hosts"] is not None:
        raise KerasdistError(
            "Received `--workers` and `--hosts`. Expected one of them: workers on this machine, or "
            "one worker of the hosts. Give a host several ports for several workers."
        )
    if values["workers"] is not None:
        return Start(timeout, num_local=values["workers"])
    if values["hosts"] is not None:
        cluster = clusters.from_hosts(values["hosts"], values["index"])
    elif (found := clusters.current()) is not None:
        cluster = found
    elif clusters.in_slurm():
        cluster = clusters.from_slurm()
    else:
        raise KerasdistError(
            "Received neither `--workers` nor `--hosts`, and there is no TF_CONFIG and no Slurm "
            "task. Expected to learn how many workers there are. Add for example `--workers 2`."
        )
    _check_port(cluster)
    return Start(timeout, cluster)


def _check_port(cluster: Cluster) -> None:
    """A port that another program has would only end in TensorFlow's words."""
    port = int(cluster.hosts[cluster.index].rpartition(":")[2])
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise KerasdistError(
                f"Received the address {cluster.hosts[cluster.index]!r} for this worker, whose "
                f"port cannot be used: {error.strerror}. Expected a free one. Choose another, or "
                "end what uses it."
            ) from None


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@dataclass
class _Worker:
    cluster: Cluster
    process: subprocess.Popen
    output: IO[bytes] | None

    @property
    def name(self) -> str:
        return self.cluster.name(self.cluster.index)

    def tail(self) -> str:
        """The end of what it printed, where that was kept."""
        if self.output is None:
            return ""
        self.output.seek(0)
        lines = self.output.read().decode(errors="replace").splitlines()
        noise = ("WARNING: All log messages before", "I0000", "W0000", "E0000")
        return "\n".join([line for line in lines if not line.startswith(noise)][-_TAIL_LINES:])


@dataclass
class _Told:
    """What workers said to the launcher."""

    run: str | None = None
    lost: list[int] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    by: list[int] = field(default_factory=list)


class _Signals:
    """Ctrl-C and SIGTERM go to the workers, which save; a second one ends them at once."""

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


def supervise(start: Start, arguments: Sequence[str], max_restarts: int = 0) -> int:
    """Runs `fit` with these arguments on the workers to its end, and returns the exit code."""
    arguments = list(arguments)
    with _Signals().watching() as signals:
        for restart in range(max_restarts + 1):
            attempt = _Attempt(start.members(), arguments, start.timeout)
            try:
                code = attempt.run(signals)
            finally:
                attempt.end()
            is_last = restart == max_restarts
            if code in (0, *_FINAL_CODES) or signals.received or is_last:
                return code
            arguments = _to_go_on(arguments, attempt.told.run)
            _say(f"starting again from the last checkpoint ({restart + 1} of {max_restarts})")
    return 1


def _to_go_on(arguments: list[str], run: str | None) -> list[str]:
    """The arguments that continue a run which had begun."""
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
    """One start of the workers."""

    def __init__(self, members: list[Cluster], arguments: list[str], timeout: float):
        self.told = _Told()
        self._timeout = timeout
        self._ended: dict[int, int] = {}
        self._text = b""
        self._reports, writing = os.pipe()
        os.set_blocking(self._reports, False)
        # Never written to: its end tells the workers that this process is gone.
        line, self._lifeline = os.pipe()
        shares = _gpu_shares(len(members), arguments) if len(members) > 1 else None
        self._workers: list[_Worker] = []
        try:
            for i, member in enumerate(members):
                environ = {
                    **os.environ,
                    "TF_CONFIG": member.tf_config(),
                    clusters.TIMEOUT: f"{timeout:g}",
                    clusters.REPORT: str(writing),
                    clusters.LIFELINE: str(line),
                    **({} if shares is None else {"CUDA_VISIBLE_DEVICES": shares[i]}),
                }
                self._workers.append(_begin(member, arguments, environ, (writing, line), i > 0))
        finally:
            os.close(writing)
            os.close(line)

    def run(self, signals: _Signals) -> int:
        """Waits for the workers to end, all of them, and says why if they should not have."""
        passed_on, deadline = 0, None
        first: tuple[_Worker, int] | None = None
        while len(self._ended) < len(self._workers):
            time.sleep(_SECONDS)
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
            # Of those that are left, none may be able to end: they are the lost ones.
            is_hopeless = first is not None and self._left() <= set(self.told.lost)
            if deadline is not None and (is_hopeless or time.monotonic() > deadline):
                self._send(signal.SIGKILL)
                deadline = None
        self._read()
        if first is None:
            return 0
        return self._explain(*first)

    def _left(self) -> set[int]:
        return {
            worker.cluster.index for i, worker in enumerate(self._workers) if i not in self._ended
        }

    def _reap(self) -> list[tuple[_Worker, int]]:
        """Those that have ended badly since the last time, the likeliest causes first."""
        failed = []
        for i, worker in enumerate(self._workers):
            code = worker.process.poll()
            if code is not None and i not in self._ended:
                self._ended[i] = code
                if code:
                    failed.append((worker, code))
        return sorted(failed, key=lambda pair: pair[1])

    def _explain(self, worker: _Worker, code: int) -> int:
        """Says what no worker has said on this terminal."""
        has_said = bool(self.told.messages) or any(
            each.output is None and self._ended[i] > 0 for i, each in enumerate(self._workers)
        )
        if code == -signal.SIGTERM:
            return 128 + signal.SIGTERM
        if code < 0 and worker.cluster.index not in self.told.by:
            name = signal.Signals(-code).name
            _say(f"{worker.name}, process {worker.process.pid}, was killed by {name}")
        elif worker.output is not None and not has_said:
            _say(f"{worker.name} ended with exit code {code}:\n{worker.tail()}")
        return max(code, 1)

    def _read(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while content := os.read(self._reports, 65536):
                self._text += content
        *lines, self._text = self._text.split(b"\n")
        for line in lines:
            fields = json.loads(line)
            self.told.run = fields.get("run", self.told.run)
            self.told.lost += fields.get("lost", [])
            if "message" in fields:
                if not self.told.messages:  # At once: it may take a while until all have ended.
                    _say(fields["message"])
                self.told.messages.append(fields["message"])
                self.told.by.append(fields["by"])

    def _send(self, number: int) -> None:
        for worker in self._workers:
            if worker.process.poll() is None:
                with contextlib.suppress(ProcessLookupError):
                    # The whole group: a recipe may have started processes of its own.
                    if number == signal.SIGKILL:
                        os.killpg(worker.process.pid, number)
                    else:
                        worker.process.send_signal(number)

    def end(self) -> None:
        """Leaves no process behind, whatever happened."""
        self._send(signal.SIGKILL)
        for worker in self._workers:
            worker.process.wait()
            if worker.output is not None:
                worker.output.close()
        os.close(self._lifeline)
        os.close(self._reports)


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
        # Ctrl-C reaches the launcher alone, which passes it on once.
        start_new_session=True,
    )
    return _Worker(member, process, output)


def _gpu_shares(num_workers: int, arguments: Sequence[str]) -> list[str] | None:
    """CUDA_VISIBLE_DEVICES of each worker; None where there are no GPUs to share out."""
    gpus = _visible_gpus()
    if not gpus or any(a.lower().startswith("cpu") for a in arguments):
        return None
    count = len(gpus) // num_workers
    if not count:
        raise KerasdistError(
            f"Received `--workers {num_workers}` on a machine with {len(gpus)} GPUs. Expected one "
            f"or more for each worker. Start at most {len(gpus)}, or add `--devices cpu`."
        )
    return [",".join(gpus[i * count : (i + 1) * count]) for i in range(num_workers)]


def _visible_gpus(environ: Mapping[str, str] = os.environ) -> list[str]:
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [part.strip() for part in chosen.split(",") if part.strip() not in ("", "-1")]
    folder = Path("/proc/driver/nvidia/gpus")
    return [str(i) for i in range(len(list(folder.iterdir())))] if folder.is_dir() else []


def _say(text: str) -> None:
    print(f"kerasdist: {text}", file=sys.stderr, flush=True)
