"""Trains a recipe with several seeds and prints the table of its README.

python benchmarks/accuracy.py cifar10 --data-dir FOLDER                  # seeds 0, 1 and 2
python benchmarks/accuracy.py cifar10 --data-dir FOLDER --seeds 0 -- --epochs 5 --devices 2
python benchmarks/accuracy.py audio --data-dir FOLDER --seeds 0 -- --hold-out-speaker theo

Options after `--` are passed to `kerasdist fit`. The accuracy is that of the final weights on the
validation data (the official test set in both recipes), without test-time augmentation. The same
command resumes runs that were stopped and skips finished ones.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from facts import about, as_line

ROOT = Path(__file__).parent.parent


def train(recipe: str, run: Path, options: list[str]) -> dict[str, Any]:
    """Runs `kerasdist fit` in a new process; returns its result, time and peak memory."""
    measured = run.with_name(f"{run.name}.json")
    if measured.exists():
        return json.loads(measured.read_text())
    command = [sys.executable, "-m", "kerasdist", "fit", str(ROOT / "recipes" / recipe), *options]
    began = time.perf_counter()
    process = subprocess.Popen([*command, "--run-dir", str(run)])
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"training stopped: {' '.join(command)}")
    result = json.loads((run / "result.json").read_text())
    result |= {
        "minutes": (time.perf_counter() - began) / 60,
        "peak_gigabytes": usage.ru_maxrss / 2**20,
        "about": about(),
    }
    measured.write_text(json.dumps(result, indent=2) + "\n")
    return result


def main() -> None:
    argv = sys.argv[1:]
    end = argv.index("--") if "--" in argv else len(argv)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("recipe", choices=sorted(p.name for p in (ROOT / "recipes").iterdir()))
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--runs", type=Path, default=ROOT / "runs" / "benchmark")
    given = parser.parse_args(argv[:end])
    options = argv[end + 1 :]
    others = " ".join(options)
    if given.data_dir:
        options += ["--data-dir", str(given.data_dir.resolve())]
    rows = []
    for seed in given.seeds:
        name = "-".join([given.recipe, *re.findall(r"\w+", others), "seed", str(seed)])
        run = given.runs.resolve() / name
        rows.append((seed, train(given.recipe, run, [*options, "--seed", str(seed)])))
    print(f"\n{as_line(rows[0][1]['about'])}\n")
    columns = "options", "epochs", "devices", "seed", "accuracy", "minutes", "examples/s", "memory"
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|")
    for seed, row in rows:
        print(
            f"| {others or 'none'} | {row['epochs']} | {len(row['devices'])} | {seed} "
            f"| {row['val_accuracy']:.2%} | {row['minutes']:.1f} "
            f"| {row['examples_per_second']:.0f} | {row['peak_gigabytes']:.2f} GB |"
        )
    mean = statistics.mean(row["val_accuracy"] for _, row in rows)
    print(f"\nmean accuracy: {mean:.2%}")


if __name__ == "__main__":
    main()
