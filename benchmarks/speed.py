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
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from contest import Contestant, launch, of_times, stop
from facts import about, as_line
from results_page import RESULTS, parts_of, write_section

HERE = Path(__file__).resolve().parent
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


def start(workload: str, torch_python: str | None) -> list[Contestant]:
    steps, names = PLANS[workload]
    contestants = []
    for name, devices in names:
        python = torch_python if name in OF_TORCH else sys.executable
        if python is not None:
            contestants.append(launched(name, workload, devices, steps, python))
            contestants[-1].first_round = contestants[-1].answer()["seconds"]
    return contestants


def launched(name: str, workload: str, devices: int, steps: int, python: str) -> Contestant:
    command = [python, str(HERE / "contestants.py"), name, workload, str(devices), str(steps)]
    return launch(command, name, devices, steps)


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
        ratios = ["" if other is None else f"{of_times(each, other):.2f}" for other in others]
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
                f"{count} devices: {1 / of_times(each, one):.2f} times the examples/s of one device"
                f"{_against_bare(each, found.get(('bare', count)))}.",
            ]
    return "\n".join(lines)


def _against_bare(each: Contestant, bare: Contestant | None) -> str:
    if bare is None:
        return ""
    return (
        f", {1 / of_times(each, bare):.2f} times those of the bare loop on {bare.devices} devices"
    )


def saving() -> str:
    """The cost of a checkpoint, measured by `benchmarks/saving.py`."""
    command = [sys.executable, str(HERE / "saving.py"), "--only", "saving"]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return "\n".join(line for line in output.splitlines() if line.startswith("|"))


def many_steps(rounds: int = 50, steps: int = 20_000, shown: int = 5) -> str:
    """Time per step and memory over a million steps, then compared with a fresh process."""
    contestants = [launched("kerasdist", "mlp", 1, steps, sys.executable)]
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
        new = launched("kerasdist", "mlp", 1, steps, sys.executable)
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
        f"Afterwards, taking turns with a fresh process: {of_times(old, new):.2f} times its time "
        "per step. Growth of memory after the first tenth: "
        f"{memory[-1] / memory[shown - 1] - 1:+.1%}.",
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
                launched(name, workload, devices, steps, sys.executable)
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
            ratios = f"{of_times(ours, shards):.2f} | {of_times(ours, plain):.2f}"
            lines.append(f"| {workload} | {devices} | {times} | {ratios} |")
    return "\n".join(lines)


def versions_of(torch_python: str | None) -> dict[str, str]:
    """Versions of the PyTorch packages, read by the interpreter that has them."""
    if torch_python is None:
        return {}
    code = f"import importlib.metadata as m; print(*map(m.version, {OF_TORCH!r}))"
    output = subprocess.run([torch_python, "-c", code], check=True, capture_output=True, text=True)
    return dict(zip(OF_TORCH, output.stdout.split(), strict=True))


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
        write_section(name, part)
    README.write_text(with_table(README.read_text(), RESULTS.read_text()))
    print(f"written to {RESULTS}, and the table of {README}")


if __name__ == "__main__":
    main()
