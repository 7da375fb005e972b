"""Runs Keras's own test files in a process of their own, with plain Keras or with kerasdist."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PATTERNS = ("keras/src/trainers/trainer_test.py", "keras/src/callbacks/*_test.py")


@dataclass(frozen=True)
class Ending:
    """How one test ended."""

    test: str
    outcome: str
    seconds: float = 0.0
    engines: int = 0  # How many of kerasdist's engines the test made.
    error: str = ""
    place: str = ""


@dataclass
class Session:
    """All tests of one session, by name."""

    endings: dict[str, Ending] = field(default_factory=dict)
    output: str = ""

    def passed(self):
        return {name for name, ending in self.endings.items() if ending.outcome == "passed"}


def copy_tests(checkout, folder):
    """Copies test files beside Keras's own conftest and settings; `keras` stays the installed one.

    Raises:
        SystemExit: There are no such tests in `checkout`.
    """
    checkout = Path(checkout)
    files = sorted(path for pattern in PATTERNS for path in checkout.glob(pattern))
    if not files:
        raise SystemExit(
            f"there is no {PATTERNS[0]} in {str(checkout)!r}: give the folder of a copy of Keras's "
            "repository, at the version that is installed (`python -c 'import keras; "
            "print(keras.__version__)'`)"
        )
    for path in (*files, checkout / "conftest.py", checkout / "pyproject.toml"):
        shutil.copy(path, folder)


def read_endings(results):
    """The endings in a file of results; a test that only started killed its process."""
    endings = {}
    if not results.exists():
        return endings
    for line in results.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        if record["outcome"] == "started":
            record |= {"outcome": "failed", "error": "the process died", "place": ""}
        endings[record["test"]] = Ending(**record)
    return endings


def run_session(checkout, devices, keyword="", results=None):
    """Runs the tests once, with kerasdist on `devices` devices, or with plain Keras for None.

    A test that kills the process fails; the tests after it run in another process. `results` is a
    file that keeps how each test ended: a session that was stopped continues there.
    """
    session = Session()
    with tempfile.TemporaryDirectory(prefix="keras-own-") as folder:
        copy_tests(checkout, folder)
        results = Path(folder, "results.jsonl") if results is None else Path(results).absolute()
        _forget_unfinished(results)
        session.endings = read_endings(results)
        command = [sys.executable, "-m", "pytest", "-p", "tests.keras_own.plugin"]
        command += ["-p", "no:cacheprovider", "--tb=short", *(["-k", keyword] if keyword else [])]
        while True:
            done = subprocess.run(
                [*command, *(f"--deselect={name}" for name in session.endings)],
                cwd=folder,
                env=_environment(devices, results),
                capture_output=True,
                text=True,
                check=False,
            )
            session.output += done.stdout + done.stderr
            known = len(session.endings)
            session.endings = read_endings(results)
            died = done.returncode < 0 or done.returncode > 5
            if not died or len(session.endings) == known:
                break
    if not session.endings:
        raise SystemExit(f"no test ran; the end of pytest's output:\n{session.output[-3000:]}")
    return session


def _forget_unfinished(results):
    """Leaves out a test that was running when the session was stopped."""
    if results.exists():
        lines = results.read_text(encoding="utf-8").splitlines()
        kept = [line for line in lines if json.loads(line)["outcome"] != "started"]
        results.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


def _environment(devices, results):
    return os.environ | {
        "KERAS_BACKEND": "tensorflow",
        "KERAS_OWN_DEVICES": str(devices or ""),
        "KERAS_OWN_RESULTS": str(results),
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]).strip(":"),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }
