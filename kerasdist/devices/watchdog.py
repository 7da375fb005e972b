"""A small process beside a worker. It ends the worker where the worker cannot end itself:

- TensorFlow waits for ever for a worker that never starts, and no Python runs meanwhile (2.21);
- a worker whose launcher was killed would go on without it.

Started as a script, with nothing but the standard library: it must not cost memory.
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
    """The workers whose address nobody listens on."""
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
    names = ", ".join(f"worker {i} ({hosts[i]})" for i in missing) or "all of them, slowly"
    return (
        f"Received no word from {names} within {timeout:g} s. Expected {len(hosts)} workers to "
        "start. See what the missing ones say, or give them more time with `--worker-timeout`."
    )


def report(descriptor: int | None, **fields: object) -> bool:
    """Tells the launcher, if there is one."""
    if descriptor is None:
        return False
    with contextlib.suppress(OSError):
        os.write(descriptor, (json.dumps(fields) + "\n").encode())
        return True
    return False


def watch(
    worker: int, hosts: list[str], index: int, timeout: float, told: int | None, line: int | None
) -> None:
    """Returns when the worker has ended, by itself or by this."""
    # A bit before the timeout: asking the others takes its time, too.
    deadline = time.monotonic() + max(timeout - 2 * _PROBE_SECONDS, timeout / 2)
    is_joined = False
    while True:
        left = None if is_joined else max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([0] if line is None else [0, line], [], [], left)
        if line is not None and line in ready:  # Nothing is ever sent: the launcher is gone.
            os.kill(worker, signal.SIGKILL)
            return
        if 0 in ready:
            if not os.read(0, 1024):
                return
            is_joined = True
        if not ready:
            missing = absent(hosts, index)
            message = missing_message(hosts, missing, timeout)
            if not report(told, by=index, lost=missing, message=message):
                os.write(2, f"kerasdist: {message}\n".encode())
            os.kill(worker, signal.SIGKILL)
            return


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watch(**json.loads(sys.argv[1]))
