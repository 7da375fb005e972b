"""Kills a script with three fits at random moments, and compares what it prints in the end.

python -m tests.faults.scripts --runs 30
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
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
SCRIPT = HERE / "three_fits.py"
OPTIONS = ("--deterministic", "--shards", "4", "--save-every", "3")
# A strike in a fit waits this long for the first fit.
PATIENCE_SECONDS = 120.0
# A script that ended before its strike is started anew, with an earlier one.
MOST_TRIES = 6


@dataclass(frozen=True)
class Undisturbed:
    """The script that the others are compared with.

    `until_fit` and `seconds` say when its first fit began, and when it ended.
    """

    output: str
    weights: list[str]
    until_fit: float
    seconds: float


def start(folder: Path, devices: int) -> subprocess.Popen[str]:
    command = ["run", "--devices", str(devices), "--run-dir", str(folder / "fits"), *OPTIONS]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment.pop("KERASDIST_LOGICAL_CPUS", None)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "stdout.txt", "w") as out, open(folder / "stderr.txt", "a") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "kerasdist", *command, str(SCRIPT)],
            stdout=out,
            stderr=errors,
            text=True,
            env=environment,
        )


def finish(folder: Path, devices: int) -> tuple[str, list[str]]:
    """Runs the script to its end. Returns what it printed, and the hashes of the fits' weights."""
    code = start(folder, devices).wait()
    if code != 0:
        raise AssertionError(f"exit {code}:\n{(folder / 'stderr.txt').read_text()}")
    results = sorted((folder / "fits").glob("fit-*/result.json"))
    weights = [json.loads(path.read_text())["weights_sha256"] for path in results]
    return (folder / "stdout.txt").read_text(), weights


def has_fit(folder: Path) -> bool:
    return (folder / "fits" / "fit-01" / "checkpoints").is_dir()


def run_undisturbed(folder: Path, devices: int = 1) -> Undisturbed:
    began = time.monotonic()
    process = start(folder, devices)
    while not has_fit(folder) and process.poll() is None:
        time.sleep(0.01)
    until_fit = time.monotonic() - began
    if process.wait() != 0:
        raise AssertionError((folder / "stderr.txt").read_text())
    seconds = time.monotonic() - began
    output, weights = finish(folder, devices)  # All is loaded.
    return Undisturbed(output, weights, until_fit, seconds)


def strike(folder: Path, undisturbed: Undisturbed, moment: float, devices: int) -> bool:
    """Kills the script at a moment between 0, when its first fit begins, and 1, when it ends.

    A negative moment lies before the first fit. False if the script ended before.
    """
    is_resumed = has_fit(folder)
    process = start(folder, devices)
    deadline = time.monotonic() + PATIENCE_SECONDS
    if moment < 0 or is_resumed:  # The folders of an earlier process tell nothing of this one.
        time.sleep(undisturbed.until_fit * (1 + min(moment, 0)))
    while moment >= 0 and not is_resumed and not has_fit(folder) and process.poll() is None:
        if time.monotonic() > deadline:
            raise AssertionError("no fit began")
        time.sleep(0.005)
    time.sleep(max(moment, 0) * (undisturbed.seconds - undisturbed.until_fit))
    process.send_signal(signal.SIGKILL)
    return process.wait() == -signal.SIGKILL


def disturb(folder: Path, undisturbed: Undisturbed, chance: random.Random) -> list[str]:
    """Kills a script once or twice, lets it end, and returns what differs."""
    kills = 1 + (chance.random() < 0.2)
    counts = (1, 2, 4)
    for number in range(kills):
        moment = chance.uniform(-0.1, 1)
        for _ in range(MOST_TRIES):
            if strike(folder, undisturbed, moment, chance.choice(counts)):
                break
            if number:  # It has ended, and was killed before.
                break
            shutil.rmtree(folder)
            moment *= 0.7
        else:
            return ["no signal arrived"]
    output, weights = finish(folder, chance.choice(counts))
    problems = []
    if weights != undisturbed.weights:
        problems.append(f"other weights: {weights} and not {undisturbed.weights}")
    for now, before in zip(output.splitlines(), undisturbed.output.splitlines(), strict=False):
        if now != before:
            problems.append(f"printed {now!r} and not {before!r}")
    if len(output.splitlines()) != len(undisturbed.output.splitlines()):
        problems.append("printed another number of lines")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0, help="decides the moments and devices")
    arguments = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kerasdist-scripts-"))
    undisturbed = run_undisturbed(folder / "undisturbed")
    print(f"undisturbed: {undisturbed.seconds:.1f} s, {len(undisturbed.weights)} fits", flush=True)
    num_same = 0
    for index in range(arguments.runs):
        place = folder / f"{index:04d}"
        problems = disturb(place, undisturbed, random.Random(f"{arguments.seed}-{index}"))
        num_same += not problems
        print(f"run {index}: {'; '.join(problems) or 'the same'}", flush=True)
        if problems:
            print(f"  kept in {place}", flush=True)
        else:
            shutil.rmtree(place)
    print(f"{num_same} of {arguments.runs} ended with the undisturbed weights and output")
    return int(num_same < arguments.runs)


if __name__ == "__main__":
    sys.exit(main())
