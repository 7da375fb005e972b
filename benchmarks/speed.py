"""Compares the speed of kerasdist with Keras, a bare TensorFlow loop, Lightning and Accelerate.

python benchmarks/speed.py                       # all sections; writes benchmarks/RESULTS.md
python benchmarks/speed.py mlp start-up          # only these sections
python benchmarks/speed.py --torch-python PYTHON # also PyTorch, Lightning and Accelerate

Each contestant is a separate process. They take turns round by round, so other work on the machine
slows all of them alike. Times are medians over the rounds; a ratio is the median of the ratios of
neighbouring rounds. PyTorch is not installed with kerasdist: `--torch-python` names a Python
interpreter that has it (`pip install torch lightning accelerate`, the CPU build of PyTorch).
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from facts import about, as_line

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "RESULTS.md"
README = HERE.parent / "README.md"
OF_TORCH = ("torch", "accelerate", "lightning")
OURS = ("kerasdist", "deterministic", "keras", "bare")
# For each workload: the steps of a round, and the contestants with their number of devices.
PLANS: dict[str, tuple[int, list[tuple[str, int]]]] = {
    "mlp": (
        1000,
        [
            *[(name, 1) for name in (*OURS, *OF_TORCH)],
            *[(name, 2) for name in OURS],
            *[(name, n) for n in (4, 8) for name in ("kerasdist", "keras")],
        ],
    ),
    "convolutions": (
        10,
        [
            *[(name, 1) for name in (*OURS, *OF_TORCH[:2])],
            *[(name, 2) for name in OURS],
            *[(name, 4) for name in ("kerasdist", "bare")],
        ],
    ),
    "recurrent": (
        10,
        [
            *[(name, 1) for name in (*OURS, *OF_TORCH[:2])],
            *[(name, 2) for name in OURS],
            *[(name, 4) for name in ("kerasdist", "bare")],
        ],
    ),
    **{
        f"variables-{n}": (100, [("kerasdist", 1), ("keras", 1), ("kerasdist", 2), ("keras", 2)])
        for n in (10, 100, 1000)
    },
}
BATCH_SIZES = {"convolutions": 128, "recurrent": 64}  # 32 for the others
MEANINGS = {
    "mlp": "A tiny network (16-64-10, Adam, batches of 32): the overhead per step.",
    "convolutions": "The layers of the CIFAR-10 tutorial, batches of 128, 12,800 images of 24x24.",
    "recurrent": "The layers of recipes/audio, batches of 64, 2,700 clips of 30 time steps.",
    **{f"variables-{n}": f"A chain of small layers with {n} variables." for n in (10, 100, 1000)},
}
HEAD = """\
# Speed

`python benchmarks/speed.py` writes this page. The line below each table says when and
on which machine.

**How it is measured.** All contestants of a workload have the same layers, optimizer, batch size
and arrays in memory. They shuffle the arrays and compute the loss and the accuracy of each epoch.
Each contestant is a separate process, and they take turns round by round, so other work on the
machine slows all of them alike. Times are medians over the rounds, and ± is half of the
interquartile range. A ratio is the median of the ratios of neighbouring rounds. It compares times,
so lower is better.

**Devices** are logical CPUs that share the same cores, so several devices cannot be faster than
one. No GPU was available: nothing here was run on one.

**Contestants.**

- `kerasdist` is `kerasdist.fit`; `deterministic` is the same with `deterministic=True`, which cuts
  every batch into 4 shards on any number of devices.
- `keras` is Keras's own `fit`, on several devices with `MirroredStrategy`.
- `bare` is one compiled loop over a `tf.data` pipeline, as a careful user would write it: forward
  pass, gradient, Keras's optimizer, loss, accuracy and a check that the gradients are finite. On
  several devices it uses `strategy.run`.
- `torch` and `accelerate` run the loop of PyTorch's tutorial, with a `DataLoader` in the same
  process. `lightning` is its `Trainer`, without files and without a progress bar.

Everything that uses TensorFlow runs convolutions with the same oneDNN operations, which take nearly
all of the time, so no contestant can be far ahead there. oneDNN is on for all of them, as kerasdist
turns it on (TensorFlow itself does so only on processors with AVX512-VNNI or newer). kerasdist runs
a recurrent layer as one operation over time, with a custom gradient
(`kerasdist/models/pure/layers/recurrence.py`)."""


@dataclass
class Contestant:
    """A process that trains, and the timings it reported."""

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

    def go(self) -> dict[str, float]:
        print("go", file=self.process.stdin, flush=True)
        answer = self.answer()
        self.seconds.append(answer["seconds"])
        self.memory = int(answer["memory"])
        return answer


def start(workload: str, torch_python: str | None) -> list[Contestant]:
    steps, names = PLANS[workload]
    contestants = []
    for name, devices in names:
        python = torch_python if name in OF_TORCH else sys.executable
        if python is not None:
            contestants.append(launch(name, workload, devices, steps, python))
            contestants[-1].first_round = contestants[-1].answer()["seconds"]
    return contestants


def launch(name: str, workload: str, devices: int, steps: int, python: str) -> Contestant:
    command = [python, str(HERE / "contestants.py"), name, workload, str(devices), str(steps)]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True
    )
    return Contestant(name, devices, process, steps)


def measure(workload: str, given: argparse.Namespace) -> list[Contestant]:
    contestants = start(workload, given.torch_python)
    try:
        for number in range(given.rounds):
            print(f"{workload}: round {number + 1} of {given.rounds}", file=sys.stderr)
            for contestant in contestants:
                contestant.go()
    finally:
        stop(contestants)
    return contestants


def stop(contestants: list[Contestant]) -> None:
    for contestant in contestants:
        contestant.process.kill()
        contestant.process.wait()


def ratio(one: Contestant, other: Contestant) -> float:
    """The median of the time of `one` ÷ the time of `other`, round by round."""
    return statistics.median(a / b for a, b in zip(one.seconds, other.seconds, strict=True))


def table(workload: str, contestants: list[Contestant]) -> str:
    """A Markdown table: one row per contestant, with its time ÷ that of Keras and the bare loop."""
    found = {(each.name, each.devices): each for each in contestants}
    lines = [
        "| | devices | ms per step | ± | examples/s | time ÷ Keras (lower is better) "
        "| time ÷ bare loop (lower is better) | first round | memory |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for each in contestants:
        others = [found.get((name, each.devices)) for name in ("keras", "bare")]
        # Contestants that use PyTorch run on one device only.
        ratios = ["" if other is None else f"{ratio(each, other):.2f}" for other in others]
        low, _, high = statistics.quantiles(each.seconds, n=4)
        spread = (high - low) / 2 / statistics.median(each.seconds)
        rate = 1e3 * BATCH_SIZES.get(workload, 32) / each.milliseconds
        lines.append(
            f"| {each.name} | {each.devices} | {each.milliseconds:.3f} | {spread:.0%} "
            f"| {rate:,.0f} | {' | '.join(ratios)} | {each.first_round:.1f} s "
            f"| {each.memory / 2**20:,.0f} MB |"
        )
    one = found.get(("kerasdist", 1))
    for count in (2, 4, 8) if one is not None and workload in BATCH_SIZES else ():
        each = found.get(("kerasdist", count))
        if each is not None:
            lines += [
                "",
                f"{count} devices: {1 / ratio(each, one):.2f} times the examples/s of one device"
                f"{_against_bare(each, found.get(('bare', count)))}.",
            ]
    return "\n".join(lines)


def _against_bare(each: Contestant, bare: Contestant | None) -> str:
    if bare is None:
        return ""
    return f", {1 / ratio(each, bare):.2f} times those of the bare loop on {bare.devices} devices"


def saving() -> str:
    """The cost of a checkpoint, measured by `benchmarks/saving.py`."""
    command = [sys.executable, str(HERE / "saving.py"), "--only", "saving"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return "\n".join(line for line in output.splitlines() if line.startswith("|"))


def many_steps(rounds: int = 50, steps: int = 20_000, shown: int = 5) -> str:
    """Time per step and memory over a million steps, then compared with a fresh process."""
    contestants = [launch("kerasdist", "mlp", 1, steps, sys.executable)]
    (old,) = contestants
    lines, memory = ["| steps | µs per step | memory |", "|---|---|---|"], []
    try:
        old.answer()
        for number in range(1, rounds + 1):
            memory.append(old.go()["now"])
            if number % shown == 0:
                print(f"many steps: round {number} of {rounds}", file=sys.stderr)
                each = 1e6 * statistics.median(old.seconds[-shown:]) / steps
                lines.append(f"| {number * steps:,} | {each:.0f} | {memory[-1] / 2**20:,.1f} MB |")
        # Compared with a fresh process, because the machine itself may have become slower.
        new = launch("kerasdist", "mlp", 1, steps, sys.executable)
        contestants.append(new)
        new.answer()
        old.seconds.clear()
        for _ in range(rounds // shown):
            for contestant in contestants:
                contestant.go()
    finally:
        stop(contestants)
    lines += [
        "",
        f"Afterwards, taking turns with a fresh process: {ratio(old, new):.2f} times its time per "
        f"step. Growth of memory after the first tenth: {memory[-1] / memory[shown - 1] - 1:+.1%}.",
    ]
    return "\n".join(lines)


def determinism(rounds: int) -> str:
    """The cost of `deterministic=True`, compared with 4 shards alone and with the default."""
    lines = [
        "| | devices | default (ms per step) | 4 shards (ms per step) "
        "| deterministic (ms per step) | deterministic ÷ 4 shards | deterministic ÷ default |",
        "|---|---|---|---|---|---|---|",
    ]
    for workload in ("mlp", "convolutions", "recurrent"):
        steps, _ = PLANS[workload]
        for devices in (1, 2):
            contestants = [
                launch(name, workload, devices, steps, sys.executable)
                for name in ("kerasdist", "four-shards", "deterministic")
            ]
            try:
                for contestant in contestants:
                    contestant.answer()
                for number in range(rounds):
                    print(f"determinism: {workload}, round {number + 1}", file=sys.stderr)
                    for contestant in contestants:
                        contestant.go()
            finally:
                stop(contestants)
            plain, shards, ours = contestants
            times = " | ".join(f"{each.milliseconds:.3f}" for each in contestants)
            ratios = f"{ratio(ours, shards):.2f} | {ratio(ours, plain):.2f}"
            lines.append(f"| {workload} | {devices} | {times} | {ratios} |")
    return "\n".join(lines)


def versions_of(torch_python: str | None) -> dict[str, str]:
    """Versions of the PyTorch packages, read by the interpreter that has them."""
    if torch_python is None:
        return {}
    code = f"import importlib.metadata as m; print(*map(m.version, {OF_TORCH!r}))"
    output = subprocess.run([torch_python, "-c", code], check=True, capture_output=True, text=True)
    return dict(zip(OF_TORCH, output.stdout.split(), strict=True))


def parts_of(results: str) -> dict[str, str]:
    """The sections of RESULTS.md by name."""
    return {
        name: body.strip()
        for name, _, body in (part.partition("\n") for part in results.split("\n## ")[1:])
    }


def with_table(readme: str, results: str) -> str:
    """The README with a new table of speed between its two marks."""
    lines = parts_of(results)["mlp"].strip().splitlines()
    table = [line for line in lines if line.startswith("|") and "deterministic" not in line]
    before, rest = readme.split("<!-- speed -->\n")
    _, after = rest.split("<!-- end of speed -->\n")
    block = "\n".join([*table, "", f"`python benchmarks/speed.py`; {lines[-1]}"])
    return f"{before}<!-- speed -->\n{block}\n<!-- end of speed -->\n{after}"


# Both import everything, read the synthetic data of the recipe, build its model and train one step.
FIRST_STEP = """
import os, sys, time
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import kerasdist
recipe = kerasdist.load_recipe("cifar10", source="synthetic", num_train=1024)
model, data = recipe.build_model(), recipe.build_data("train")
if sys.argv[1] == "kerasdist":
    kerasdist.fit(model, data, batch_size=512, steps=1, progress=False)
else:
    x, y = data["image"], data["label"]
    model.fit(x, y, batch_size=512, steps_per_epoch=1, epochs=1, verbose=0)
"""


def start_up(rounds: int) -> str:
    """Seconds from the start of Python to the end of the first step, of imports and of `--help`."""
    commands = {
        "kerasdist, recipes/cifar10, first step": [sys.executable, "-c", FIRST_STEP, "kerasdist"],
        "Keras fit, the same model, first step": [sys.executable, "-c", FIRST_STEP, "keras"],
        "`import tensorflow, keras`": [sys.executable, "-c", "import tensorflow, keras"],
        "`import kerasdist`": [sys.executable, "-c", "import kerasdist"],
        "`kerasdist --help`": [sys.executable, "-m", "kerasdist", "--help"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for number in range(rounds):
        print(f"start-up: round {number + 1} of {rounds}", file=sys.stderr)
        for name, command in commands.items():
            began = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times[name].append(time.perf_counter() - began)
    lines = ["| | seconds |", "|---|---|"]
    lines += [f"| {name} | {statistics.median(each):.2f} |" for name, each in times.items()]
    ours, theirs = list(times.values())[:2]
    by_keras = statistics.median(a / b for a, b in zip(ours, theirs, strict=True))
    return "\n".join([*lines, "", f"First step, kerasdist ÷ Keras: {by_keras:.2f}."])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    sections: dict[str, tuple[str, Callable[[], str]]] = {
        name: (MEANINGS[name], lambda name=name: table(name, measure(name, given)))  # type: ignore[misc]
        for name in PLANS
    }
    sections["determinism"] = (
        "The cost of `deterministic=True`. Ratios compare times: lower is better.",
        lambda: determinism(given.rounds),
    )
    sections["many-steps"] = (
        "The network of `mlp` on one device, for a million steps.",
        many_steps,
    )
    sections["start-up"] = (
        "Whole processes, from start to exit, taking turns.",
        lambda: start_up(given.rounds),
    )
    sections["checkpoints"] = ("The cost of a save, by `python benchmarks/saving.py`.", saving)
    parser.add_argument("sections", nargs="*", choices=[*sections, []], default=[])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--torch-python")
    given = parser.parse_args()
    versions = versions_of(given.torch_python)
    for name in given.sections or sections:
        meaning, run = sections[name]
        facts = about()
        facts["versions"] |= versions
        part = f"{meaning}\n\n{run()}\n\n{as_line(facts)}."
        print(f"## {name}\n\n{part}\n", flush=True)
        # Written at once, so a failure in the next section loses nothing.
        parts = (parts_of(RESULTS.read_text()) if RESULTS.exists() else {}) | {name: part}
        ordered = [f"## {name}\n\n{parts[name]}" for name in sections if name in parts]
        RESULTS.write_text("\n\n".join([HEAD, *ordered]) + "\n")
    README.write_text(with_table(README.read_text(), RESULTS.read_text()))
    print(f"written to {RESULTS}, and the table of {README}")


if __name__ == "__main__":
    main()
