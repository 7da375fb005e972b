"""Trains recipes/cifar10 with several seeds and prints the table of its README.

python benchmarks/cifar10.py --data-dir FOLDER --epochs 10
python benchmarks/cifar10.py --data-dir FOLDER --epochs 5 --seeds 0 --devices 2
python benchmarks/cifar10.py --data-dir FOLDER --preset accurate --seeds 0

The accuracy is that of the final weights on the test set, once, without test-time augmentation. The
same command goes on with runs that were stopped; a finished run is not trained again.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from facts import about, as_line

ROOT = Path(__file__).parent.parent


def train(run: Path, options: list[str]) -> dict[str, Any]:
    """`kerasdist fit` in a process of its own: its result, and its time and memory if it ran."""
    measured = run.with_name(f"{run.name}.json")
    if measured.exists():
        return json.loads(measured.read_text())
    command = [sys.executable, "-m", "kerasdist", "fit", "recipes/cifar10", "--run-dir", str(run)]
    began = time.perf_counter()
    process = subprocess.Popen([*command, *options], cwd=ROOT)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"training stopped: {' '.join([*command, *options])}")
    result = json.loads((run / "result.json").read_text())
    result |= {
        "minutes": (time.perf_counter() - began) / 60,
        "peak_gigabytes": usage.ru_maxrss / 2**20,
    }
    measured.write_text(json.dumps(result))
    return result


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--preset", default="fast")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--devices", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "benchmark")
    given = parser.parse_args()
    facts = about()
    rows = []
    for seed in given.seeds:
        name = f"{given.preset}-{given.epochs}-epochs-{given.devices}-devices-seed-{seed}"
        options = {
            "data-dir": given.data_dir.resolve(),
            "preset": given.preset,
            "epochs": given.epochs,
            "seed": seed,
            "devices": given.devices,
        }
        flags = [part for key, value in options.items() for part in (f"--{key}", str(value))]
        rows.append((seed, train(given.runs.resolve() / name, flags)))
    print(f"\n{as_line(facts)}\n")
    columns = "preset", "epochs", "devices", "seed", "accuracy", "minutes", "examples/s", "memory"
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for seed, row in rows:
        speed = f"{row['minutes']:.1f} | {row['examples_per_second']:.0f}"
        print(
            f"| {given.preset} | {given.epochs} | {given.devices} | {seed} "
            f"| {row['val_accuracy']:.2%} | {speed} | {row['peak_gigabytes']:.2f} GB |"
        )
    mean = statistics.mean(row["val_accuracy"] for _, row in rows)
    print(f"\nmean test accuracy: {mean:.2%}")


if __name__ == "__main__":
    main()
