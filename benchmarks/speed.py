"""How fast kerasdist trains beside Keras, a bare TensorFlow loop, Lightning and Accelerate.

python benchmarks/speed.py                       # everything, and benchmarks/RESULTS.md
python benchmarks/speed.py mlp --rounds 3        # one workload, printed only
python benchmarks/speed.py --torch-python PYTHON # with PyTorch, Lightning and Accelerate

Each contestant is a process, and their rounds take turns: what else the machine does slows all of
them. Times are medians of the rounds, ratios medians of the ratios of neighbouring rounds. PyTorch
is not installed with kerasdist: `--torch-python` names an interpreter that has it (`pip install
torch lightning accelerate`, PyTorch's CPU build).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from facts import about, as_line

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "RESULTS.md"
OF_TORCH = ("torch", "accelerate", "lightning")
# Contestants and devices of each workload, and the steps of a round.
PLANS: dict[str, tuple[int, list[tuple[str, int]]]] = {
    "mlp": (
        1000,
        [
            *[(name, 1) for name in ("kerasdist", "deterministic", "keras", "bare", *OF_TORCH)],
            *[(name, 2) for name in ("kerasdist", "deterministic", "keras", "bare")],
            *[(name, 4) for name in ("kerasdist", "keras")],
        ],
    ),
    "convolutions": (
        10,
        [
            *[(name, 1) for name in ("kerasdist", "deterministic", "keras", "bare", *OF_TORCH[:2])],
            *[(name, 2) for name in ("kerasdist", "deterministic", "keras", "bare")],
            ("kerasdist", 4),
        ],
    ),
}
BATCH_SIZES = {"mlp": 32, "convolutions": 128}
MEANINGS = {
    "mlp": "16-64-10, Adam, batches of 32: what a framework adds to a step",
    "convolutions": "the CIFAR-10 tutorial's layers, batches of 128 images of 24x24",
}


@dataclass
class Contestant:
    """A process that trains, and what it answered."""

    name: str
    devices: int
    process: subprocess.Popen
    steps: int
    seconds: list[float] = field(default_factory=list)
    memory: int = 0
    first_round: float = 0.0

    @property
    def title(self) -> str:
        return f"{self.name} on {self.devices}"

    @property
    def milliseconds(self) -> float:
        return 1e3 * statistics.median(self.seconds) / self.steps

    def answer(self) -> dict[str, float]:
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.title} ended: {self.process.wait()}")
        return json.loads(line)

    def go(self) -> None:
        print("go", file=self.process.stdin, flush=True)
        answer = self.answer()
        self.seconds.append(answer["seconds"])
        self.memory = int(answer["memory"])


def start(workload: str, torch_python: str | None) -> list[Contestant]:
    steps, names = PLANS[workload]
    contestants = []
    for name, devices in names:
        python = torch_python if name in OF_TORCH else sys.executable
        if python is None:
            continue
        command = [python, str(HERE / "contestants.py"), name, workload, str(devices), str(steps)]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        contestant = Contestant(name, devices, process, steps)
        contestants.append(contestant)
        contestant.first_round = contestant.answer()["seconds"]
    return contestants


def measure(workload: str, rounds: int, torch_python: str | None) -> list[Contestant]:
    contestants = start(workload, torch_python)
    try:
        for number in range(rounds):
            print(f"{workload}: round {number + 1} of {rounds}", file=sys.stderr)
            for contestant in contestants:
                contestant.go()
    finally:
        for contestant in contestants:
            contestant.process.kill()
            contestant.process.wait()
    return contestants


def ratio(one: Contestant, other: Contestant) -> float:
    """How many times the time of `other` the rounds of `one` took."""
    return statistics.median(a / b for a, b in zip(one.seconds, other.seconds, strict=True))


def table(workload: str, contestants: list[Contestant]) -> str:
    """Markdown: a row a contestant, with its time by that of Keras and of the bare loop."""
    found = {(each.name, each.devices): each for each in contestants}
    lines = [
        "| | devices | ms a step | ± | examples/s | time by Keras | time by bare loop | memory |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for each in contestants:
        others = [found.get((name, each.devices)) for name in ("keras", "bare")]
        # PyTorch's are compared on one device.
        ratios = ["" if other is None else f"{ratio(each, other):.2f}" for other in others]
        low, _, high = statistics.quantiles(each.seconds, n=4)
        spread = (high - low) / 2 / statistics.median(each.seconds)
        rate = 1e3 * BATCH_SIZES[workload] / each.milliseconds
        lines.append(
            f"| {each.name} | {each.devices} | {each.milliseconds:.3f} | {spread:.0%} "
            f"| {rate:,.0f} | {' | '.join(ratios)} | {each.memory / 2**20:,.0f} MB |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("workloads", nargs="*", choices=[*PLANS, []], default=[])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--torch-python")
    given = parser.parse_args()
    parts = []
    for workload in given.workloads or PLANS:
        contestants = measure(workload, given.rounds, given.torch_python)
        parts.append(f"## {workload}\n\n{MEANINGS[workload]}\n\n{table(workload, contestants)}\n")
        print(parts[-1])
    text = f"# Speed\n\n`python benchmarks/speed.py`; {as_line(about())}\n\n" + "\n".join(parts)
    print(text if given.workloads else f"written to {RESULTS}")
    if not given.workloads:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
