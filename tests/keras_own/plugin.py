"""A pytest plugin: turns kerasdist on for a whole session and records how each test ended.

`KERAS_OWN_DEVICES` is the number of devices; empty or missing means plain Keras.
`KERAS_OWN_RESULTS` is the file that receives one JSON object per test.
It is imported before TensorFlow starts (`pytest -p tests.keras_own.plugin`), so that it can still
set the number of logical CPUs.
"""

import json
import os
import signal

import pytest

DEVICES = os.environ.get("KERAS_OWN_DEVICES", "")
RESULTS = os.environ.get("KERAS_OWN_RESULTS", "")
SECONDS_PER_TEST = int(os.environ.get("KERAS_OWN_SECONDS_PER_TEST", "180"))

if DEVICES:
    import kerasdist

    kerasdist.logical_cpus(int(DEVICES))
    kerasdist.enable(devices=int(DEVICES))

_engines_made = 0


def _count_engines():
    """Counts what kerasdist really runs: a test that never reaches it proves nothing about it."""
    from kerasdist.engine.engine import Engine

    original = Engine.__init__

    def counted(self, *args, **kwargs):
        global _engines_made
        _engines_made += 1
        original(self, *args, **kwargs)

    Engine.__init__ = counted


if DEVICES:
    _count_engines()


def first_line_of(error):
    """Type and first line of the message, as a reader would quote it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__


def place_of(excinfo):
    """The innermost line of kerasdist or Keras in the traceback: where the cause is to be found."""
    for entry in reversed(excinfo.traceback):
        for package in ("kerasdist", "keras"):
            path = str(entry.path).replace(os.sep, "/")
            if f"/{package}/" in path and "/traceback_utils" not in path:
                return f"{package}/{path.rsplit(f'/{package}/', 1)[1]}:{entry.lineno + 1}"
    return f"{excinfo.traceback[-1].path.name}:{excinfo.traceback[-1].lineno + 1}"


def _write(record):
    with open(RESULTS, "a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item, nextitem):
    """A started test is written at once: if the process dies, the last one is known."""
    global _engines_made
    _engines_made = 0
    _write({"test": item.name_of_test, "outcome": "started"})
    return (yield)


def pytest_collection_modifyitems(items):
    for item in items:
        item.name_of_test = f"{item.path.name}::{item.nodeid.split('::', 1)[1]}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    def too_long(signum, frame):
        raise TimeoutError(f"the test did not end in {SECONDS_PER_TEST} seconds")

    before = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS_PER_TEST)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if report.when == "call" or (report.when == "setup" and report.outcome != "passed"):
        record = {
            "test": item.name_of_test,
            "outcome": report.outcome,
            "seconds": round(report.duration, 2),
            "engines": _engines_made,
        }
        if report.outcome == "failed" and call.excinfo is not None:
            record["error"] = first_line_of(call.excinfo.value)
            record["place"] = place_of(call.excinfo)
        _write(record)
    return report
