"""Starts real `kerasdist fit` processes, kills them, resumes them, and compares the end.

python -m tests.faults.harness --runs 200        # SIGKILL at random moments, saving included
python -m tests.faults.harness --runs 20 --signal TERM
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RECIPE = Path(__file__).parent / "recipe"
OPTIONS = [
    *("--deterministic", "--shards", "4", "--ema", "0.9", "--clip-norm", "1.0"),
    *("--save-every", "3", "--log-every", "1", "--pause", "0.005"),
]


def start(run: Path, *options: str) -> subprocess.Popen:
    """One `kerasdist fit` of the small recipe."""
    command = [sys.executable, "-m", "kerasdist", "fit", str(RECIPE), *OPTIONS]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("KERASDIST_LOGICAL_CPUS", None)
    return subprocess.Popen(
        [*command, "--run-dir", str(run), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment,
    )


def finish(run: Path, *options: str) -> dict:
    """Runs to the end; returns result.json."""
    process = start(run, *options)
    output, _ = process.communicate()
    if process.returncode != 0:
        raise AssertionError(f"exit {process.returncode}:\n{output}")
    return json.loads((run / "result.json").read_text())


def strike(run: Path, moment: str, number: int, chance: random.Random, *options: str):
    """Starts a run and sends it a signal: after a random step, while it saves, at an epoch's end.

    Returns the exit code and the last lines; the run may have ended before.
    """
    process = start(run, *options)
    lines: list[str] = []
    wanted = chance.randrange(1, 30)
    for line in process.stdout:
        lines.append(line)
        begun = sum("step" in text and "loss" in text for text in lines)
        if moment == "step" and begun >= wanted:
            time.sleep(chance.uniform(0, 0.02))
            break
        if moment == "epoch" and "epoch" in line:
            time.sleep(chance.uniform(0, 0.05))
            break
        if moment == "save" and begun >= min(wanted, 12):
            until = time.monotonic() + 5
            while time.monotonic() < until and process.poll() is None:
                if list((run / "checkpoints").glob("tmp-*")):
                    break
            break
    if process.poll() is None:
        process.send_signal(number)
    rest, _ = process.communicate()
    return process.returncode, [*lines, rest]


def seen_once(run: Path, epochs: int = 4, examples: int = 331) -> bool:
    """Each logged step and epoch is there once, and every example was used once an epoch."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [line["step"] for line in lines if line["kind"] == "step"]
    done = [line["epoch"] for line in lines if line["kind"] == "epoch"]
    result = json.loads((run / "result.json").read_text())
    return (
        steps == list(range(1, result["steps"] + 1))
        and done == list(range(1, epochs + 1))
        and result["examples_seen"] == epochs * examples
    )


def check(folder: Path, undisturbed: dict, index: int, number: int, strikes: int = 2) -> bool:
    """One run with a few strikes, resumed to its end: whether it ended with the same bits."""
    chance = random.Random(index)
    run = folder / f"run-{index}"
    for i in range(strikes):
        devices = ("--devices", str(chance.choice([1, 2, 4])))
        moment = ("step", "save", "epoch")[(index + i) % 3]
        strike(run, moment, number, chance, *devices)
    result = finish(run)
    same = result["weights_sha256"] == undisturbed["weights_sha256"] and seen_once(run)
    if same:
        shutil.rmtree(run)
    return same


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--signal", default="KILL", choices=["KILL", "TERM", "INT"])
    arguments = parser.parse_args()
    number = getattr(signal, f"SIG{arguments.signal}")
    folder = Path(tempfile.mkdtemp(prefix="kerasdist-faults-"))
    undisturbed = finish(folder / "undisturbed")
    good = 0
    for index in range(arguments.runs):
        good += check(folder, undisturbed, index, number)
        print(f"{good} of {index + 1} runs ended with the undisturbed weights", flush=True)
    print(f"{good} passed, {arguments.runs - good} failed")
    return 0 if good == arguments.runs else 1


if __name__ == "__main__":
    sys.exit(main())
