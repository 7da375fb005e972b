"""Runs unmodified example scripts of Keras with made-up data, with plain Keras or with kerasdist.

    git clone --depth 1 <repository of Keras's examples> keras-io
    python -m tests.keras_examples.run_examples keras-io --devices 2
    python -m tests.keras_examples.run_examples keras-io --plain examples/vision/mnist_convnet.py

Downloads, data sets and pretrained weights are replaced from outside (`startup/sitecustomize.py`),
and Keras's own limits keep each run short: one epoch of two steps. Nothing in a script changes.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.keras_examples import working_folder

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def listed_scripts():
    """The scripts in `scripts.txt`, and how many rows of data each needs (None: few)."""
    lines = (HERE / "scripts.txt").read_text(encoding="utf-8").splitlines()
    words = [line.split("#")[0].split() for line in lines]
    return {
        word[0]: dict(part.split("=") for part in word[1:]).get("rows") for word in words if word
    }


def _environment(folder, arguments, rows):
    paths = [str(HERE / "startup"), str(ROOT), os.environ.get("PYTHONPATH", "")]
    backend = {"KERAS_EXAMPLES_BACKEND": "tensorflow"} if arguments.plain else {}
    return {
        **os.environ,
        **backend,
        "HOME": str(folder),  # Scripts read `~/.keras/datasets`.
        "KERAS_HOME": str(folder / ".keras"),
        "KERAS_BACKEND": "tensorflow",
        "KERAS_EXAMPLES_ROWS": rows or "256",
        "KERAS_MAX_EPOCHS": str(arguments.epochs),
        "KERAS_MAX_STEPS_PER_EPOCH": str(arguments.steps),
        "MPLBACKEND": "Agg",
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def _command(script, arguments):
    if arguments.plain:
        return [sys.executable, str(script)]
    run = [sys.executable, "-m", "kerasdist", "run", "--devices", str(arguments.devices)]
    return [*run, str(script)]


def run_script(script, arguments, rows=None):
    """Runs one script in an empty folder and says how it ended."""
    with tempfile.TemporaryDirectory(prefix="keras-example-") as name:
        folder = Path(name)
        working_folder.fill(folder, script.read_text(encoding="utf-8"))
        started = time.monotonic()
        try:
            done = subprocess.run(
                _command(script, arguments),
                cwd=folder,
                env=_environment(folder, arguments, rows),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=arguments.timeout,
                check=False,
            )
            result, output = done.returncode, done.stdout + done.stderr
        except subprocess.TimeoutExpired as error:
            result, output = "timeout", (error.stdout or b"").decode(errors="replace")
        seconds = time.monotonic() - started
    lines = [line for line in output.splitlines() if line.strip()]
    return {
        "result": "ran" if result == 0 else str(result),
        "seconds": round(seconds, 1),
        "error": "" if result == 0 else error_of(lines),
        "output": "" if result == 0 else "\n".join(lines[-60:]),
    }


def error_of(lines):
    """The first line of the last error in the output."""
    for line in reversed(lines):
        head = line.split(":")[0].split(".")[-1]
        if head.endswith(("Error", "Exception", "Interrupt")) and not line.startswith(" "):
            return line[:240]
    return lines[-1][:240] if lines else ""


def parse(argv=None):
    parser = argparse.ArgumentParser(prog="python -m tests.keras_examples.run_examples")
    parser.add_argument("folder", type=Path, help="a copy of the repository of Keras's examples")
    parser.add_argument("names", nargs="*", help="scripts in it; all of scripts.txt by default")
    parser.add_argument("--devices", type=int, default=2, help="devices for kerasdist (2)")
    parser.add_argument("--plain", action="store_true", help="plain Keras instead of kerasdist")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2, help="steps per epoch (2)")
    parser.add_argument("--timeout", type=float, default=300, help="seconds per script (300)")
    parser.add_argument("--json", type=Path, help="one JSON object per script is added here")
    parser.add_argument("--show-output", action="store_true", help="the end of what fails")
    return parser.parse_intermixed_args(argv)


def main(argv=None):
    arguments = parse(argv)
    listed = listed_scripts()
    names = arguments.names or list(listed)
    ran = 0
    for name in names:
        report = run_script(arguments.folder.resolve() / name, arguments, listed.get(name))
        ran += report["result"] == "ran"
        print(f"{name:75} {report['result']:8} {report['seconds']:6.1f} s  {report['error']}")
        sys.stdout.flush()
        if arguments.show_output and report["output"]:
            print(report["output"])
        if arguments.json:
            with open(arguments.json, "a", encoding="utf-8") as file:
                file.write(json.dumps({"script": name, "plain": arguments.plain} | report) + "\n")
    print(f"{ran} of {len(names)} scripts ran with {'Keras' if arguments.plain else 'kerasdist'}")


if __name__ == "__main__":
    main()
