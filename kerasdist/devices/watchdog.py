"""A small process beside each worker. It kills the worker when the worker cannot end itself:

- TensorFlow waits forever for a worker that never starts, and no Python runs meanwhile (2.21);
- without it, a worker would continue after its launcher was killed.

It runs as a script and imports only the standard library, so that it needs little memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time

JOINED = b"joined\n"
_PROBE_SECONDS = 2.0


def absent(hosts: list[str], index: int, probe_seconds: float = _PROBE_SECONDS) -> list[int]:
    """The other workers that do not listen on their address."""
    found = []
    for i, host in enumerate(hosts):
        name, _, port = host.rpartition(":")
        try:
            if i != index:
                socket.create_connection((name.strip("[]"), int(port)), probe_seconds).close()
        except OSError:
            found.append(i)
    return found


def missing_message(hosts: list[str], missing: list[int], timeout: float) -> str:
    """Says which workers are missing. If none is, all have started but too slowly."""
    names = ", ".join(f"worker {i} ({hosts[i]})" for i in missing) or "some workers"
    return (
        f"Received no word from {names} within {timeout:g} s. Expected {len(hosts)} workers to "
        "start. Check the output of the missing ones, or allow more time with `--worker-timeout`."
    )


def report(descriptor: int | None, **fields: object) -> bool:
    """Sends `fields` to the launcher through its pipe; False if there is no launcher."""
    if descriptor is None:
        return False
    with contextlib.suppress(OSError):
        os.write(descriptor, (json.dumps(fields) + "\n").encode())
        return True
    return False


def watch(
    worker: int,
    hosts: list[str],
    index: int,
    timeout: float,
    reports: int | None,
    lifeline: int | None,
) -> None:
    """Returns when the worker has ended or was killed.

    Standard input says that the worker has joined the others. It closes when the worker ends.

    Args:
        worker: The process to watch.
        hosts: The addresses of all workers.
        index: The index of this worker.
        timeout: Seconds until all workers must have joined.
        reports: The launcher's pipe for reports, as a file descriptor.
        lifeline: A pipe that closes when the launcher ends.
    """
    # A bit before the timeout: asking the others takes time, too.
    deadline = time.monotonic() + max(timeout - 2 * _PROBE_SECONDS, timeout / 2)
    is_joined = False
    while True:
        left = None if is_joined else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([0] if lifeline is None else [0, lifeline], [], [], left)
        if lifeline is not None and lifeline in ready:  # It has closed: the launcher is gone.
            os.kill(worker, signal.SIGKILL)
            return
        if 0 in ready:
            if not os.read(0, 1024):
                return
            is_joined = True
        if not ready:
            missing = absent(hosts, index)
            message = missing_message(hosts, missing, timeout)
            if not report(reports, by=index, lost=missing, message=message):
                os.write(2, f"kerasdist: {message}\n".encode())
            os.kill(worker, signal.SIGKILL)
            return


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch(**json.loads(sys.argv[1]))
