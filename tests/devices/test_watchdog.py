"""The watchdog ends a worker that cannot end itself."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

from kerasdist.devices import watchdog


@contextmanager
def watched(**fields):
    """A process that sleeps, and its watchdog."""
    worker = subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"])
    fields = {
        "worker": worker.pid,
        "hosts": ["127.0.0.1:1", "127.0.0.1:9"],
        "index": 0,
        "timeout": 1.0,
        "reports": None,
        "lifeline": None,
        **fields,
    }
    passed = [fields["lifeline"]] if fields["lifeline"] is not None else []
    dog = subprocess.Popen(
        [sys.executable, "-S", watchdog.__file__, json.dumps(fields)],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        pass_fds=passed,
    )
    try:
        yield worker, dog
    finally:
        for process in (worker, dog):
            process.kill()
            process.communicate()


def test_a_worker_that_nobody_joins_is_ended_with_the_missing_ones_named():
    with watched() as (worker, dog):
        began = time.monotonic()
        assert worker.wait(10) == -signal.SIGKILL
        assert time.monotonic() - began < 5
        assert b"no word from worker 1 (127.0.0.1:9) within 1 s" in dog.communicate()[1]


def test_a_worker_that_joined_is_left_alone_until_its_launcher_is_gone():
    line, end = os.pipe()
    with watched(lifeline=line) as (worker, dog):
        dog.stdin.write(watchdog.JOINED)
        dog.stdin.flush()
        time.sleep(1.5)
        assert worker.poll() is None
        os.close(end)
        assert worker.wait(10) == -signal.SIGKILL
        dog.wait(10)
    os.close(line)
