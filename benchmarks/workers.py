"""Compares workers with replicas in one process, and measures the cost of a slow network.

python benchmarks/workers.py            # 1, 2 and 3 workers, and 1, 2 and 3 replicas
python benchmarks/workers.py --links    # two workers, by bandwidth of their network (needs root)

Both train the tutorial network of recipes/cifar10 (1.07 million parameters, batches of 120). The
share of communication comes from `fit --profile`: the time in which a reduction runs and nothing
is computed. `--links` puts each worker into a network namespace and limits the bandwidth with
`tc ... tbf`. It adds no latency, which would need `netem`.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from facts import about, as_line

BATCH = 120
FIT = (
    *("fit", "cifar10", "--preset", "tutorial", "--source", "synthetic", "--num-train", "2400"),
    *("--batch-size", str(BATCH), "--steps", "60", "--log-every", "5", "--summary-every", "0"),
)
KERASDIST = (sys.executable, "-m", "kerasdist")


def read(run: Path, output: str) -> tuple[float, float]:
    """Median seconds per step of the second half, and the share of communication."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    rates = [line["examples_per_second"] for line in lines if line["kind"] == "step"]
    found = re.search(r"all-reduce\s+[\d.]+ ms (?:a|per) step\s+([\d.]+)%", output)
    if found is None:
        raise SystemExit(f"no profile:\n{output}")
    return BATCH / statistics.median(rates[len(rates) // 2 :]), float(found[1]) / 100


def run_once(folder: Path, *command: str, environment: dict[str, str] | None = None):
    """Trains once; returns seconds per step and the share of communication."""
    run = folder / "run"
    words = [*KERASDIST, *command, "--profile", "--run-dir", str(run)]
    clean = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **(environment or {})}
    done = subprocess.run(words, capture_output=True, text=True, env=clean, check=False)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    return read(run, done.stdout + done.stderr)


def local(rounds: int) -> str:
    kinds: dict[tuple[str, int], tuple[str, ...]] = {}
    for count in (1, 2, 3):
        kinds["replicas in one process", count] = (*FIT, "--devices", f"cpu:{count}")
        kinds["workers", count] = ("launch", "--workers", str(count), *FIT, "--devices", "1")
    found: dict[tuple[str, int], list[tuple[float, float]]] = {kind: [] for kind in kinds}
    for number in range(rounds):
        for kind, command in kinds.items():
            print(f"round {number + 1} of {rounds}: {kind[1]} {kind[0]}", file=sys.stderr)
            with tempfile.TemporaryDirectory() as folder:
                found[kind].append(run_once(Path(folder), *command))
    lines = ["| | | examples/s | communication |", "|---|---|---|---|"]
    for (name, count), results in found.items():
        seconds, share = (statistics.median(column) for column in zip(*results, strict=True))
        lines.append(f"| {count} | {name} | {BATCH / seconds:.0f} | {share:.0%} |")
    return "\n".join(lines)


@contextlib.contextmanager
def namespaces(megabits: float | None):
    """Two network namespaces with a link of that bandwidth in each direction."""
    names = [f"kdb{os.getpid()}{letter}" for letter in "ab"]

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True)

    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        peer = ["peer", "name", "kdb1", "netns", names[1]]
        ip("link", "add", "kdb0", "netns", names[0], "type", "veth", *peer)
        for i, name in enumerate(names):
            ip("-n", name, "addr", "add", f"10.78.0.{i + 1}/24", "dev", f"kdb{i}")
            ip("-n", name, "link", "set", f"kdb{i}", "up")
            if megabits is not None:
                limit = ["rate", f"{megabits}mbit", "burst", "256kb", "latency", "200ms"]
                command = ["tc", "-n", name, "qdisc", "add", "dev", f"kdb{i}", "root", "tbf"]
                subprocess.run([*command, *limit], check=True)
        yield names
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], check=False)


def over_link(megabits: float | None, *more: str) -> tuple[float, float]:
    hosts = "10.78.0.1:2222,10.78.0.2:2222"
    with namespaces(megabits) as names, tempfile.TemporaryDirectory() as folder:
        workers = []
        for i, name in enumerate(names):
            launch = ("launch", "--hosts", hosts, "--index", str(i), *FIT, "--devices", "1", *more)
            profile = ("--profile", "--run-dir", f"{folder}/run")
            words = ["ip", "netns", "exec", name, *KERASDIST, *launch, *profile]
            workers.append(
                subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
        outputs = [worker.communicate()[0] for worker in workers]
        if any(worker.returncode for worker in workers):
            raise SystemExit("\n".join(outputs))
        return read(Path(folder) / "run", outputs[0])


def links(parameters: int = 1_068_298) -> str:
    """A table of measured and predicted seconds per step, by bandwidth and kind of reduction."""
    lines = ["| | Mbit/s | seconds per step | predicted | communication |", "|---|---|---|---|---|"]
    for name, more in (("all-reduce", ()), ("all-gather", ("--deterministic",))):
        free, _ = over_link(None, *more)
        for megabits in (None, 1000.0, 300.0, 100.0):
            seconds, share = over_link(megabits, *more)
            # With two workers, each sends and receives every gradient once, in both kinds.
            extra = 0.0 if megabits is None else 4 * parameters * 8 / (megabits * 1e6)
            print(f"{name}, {megabits}: {seconds:.3f} s", file=sys.stderr)
            shown = "unlimited" if megabits is None else f"{megabits:.0f}"
            lines.append(f"| {name} | {shown} | {seconds:.3f} | {free + extra:.3f} | {share:.0%} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--links", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    print(as_line(about()))
    print(links() if given.links else local(given.rounds))


if __name__ == "__main__":
    main()
