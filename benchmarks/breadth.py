"""Compares kerasdist with Keras on TensorFlow and on JAX, on whole models that nobody tuned.

python benchmarks/breadth.py --jax-python PYTHON             # all models, on 1, 2 and 4 devices
python benchmarks/breadth.py --devices 1 resnet wide_mlp     # only these

Each contestant is a separate process, and they take turns round by round (speed.py says more). JAX
is not installed with kerasdist: `--jax-python` names a Python interpreter that has it, with Keras
and NumPy (`pip install jax keras`). `--results FILE` keeps each measurement as a line of JSON, and
a second call with the same file goes on with what is missing.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from breadth_contestants import FURTHER
from breadth_models import MODELS
from contest import Contestant, launch, ratio, stop
from facts import about, as_line
from results_page import write_section

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "breadth_contestants.py"
COUNTS = (1, 2, 4)
# Processes of which only the first step is measured, besides those that train on.
FURTHER_STARTS = 2
CONTESTANTS = ("kerasdist", "deterministic", "keras-tf", "keras-jax")
MEANING = """\
{count}: whole models as their users write them, trained on arrays. `keras-tf` and `keras-jax` are
Keras's `fit` on TensorFlow and on JAX{how}. "first step" is a `fit` of one step, with all that is
compiled but without imports, in three processes of each that take turns; "further fit" is one more
such `fit` of the same model, seven times. Memory is the peak of the process. "÷" compares with the
other's time or memory round by round, so lower is better; `best` is the quicker of `keras-tf` and
`keras-jax`, `det.` is `deterministic=True`. "fails": Keras ends with an error."""
HOW = {1: "", 2: ", with `MirroredStrategy` and `DataParallel`"}


def start(name: str, model: str, devices: int, jax_python: str | None) -> Contestant:
    python = jax_python if name == "keras-jax" else sys.executable
    command = [str(python), str(SCRIPT), name, model, str(devices)]
    return launch(command, name, devices, MODELS[model].steps)


def names_for(model: str, jax_python: str | None) -> list[str]:
    has_jax = jax_python is not None and not MODELS[model].tensorflow_only
    return [name for name in CONTESTANTS if has_jax or name != "keras-jax"]


def first_steps(model: str, devices: int) -> dict[str, list[float]]:
    """Seconds of the first step, each in a process of its own that does nothing else."""
    found: dict[str, list[float]] = {"kerasdist": [], "keras-tf": []}
    for _ in range(FURTHER_STARTS):
        for name, seconds in found.items():
            contestant = start(name, model, devices, None)
            try:
                seconds.append(contestant.answer()["seconds"])
            except SystemExit:  # It fails. The process that trains on says so.
                continue
            finally:
                stop([contestant])
    return found


def measure(model: str, devices: int, rounds: int, jax_python: str | None) -> dict[str, Any]:
    """What each contestant needs for a model: seconds of each round, first steps, memory."""
    first = first_steps(model, devices)
    contestants = [start(name, model, devices, jax_python) for name in names_for(model, jax_python)]
    failed = []
    try:
        for each in list(contestants):  # One after the other: compiling takes all cores.
            try:
                first.setdefault(each.name, []).append(each.answer()["seconds"])
            except SystemExit as ended:
                print(f"{model}: {ended}", file=sys.stderr)
                contestants.remove(each)
                failed.append(each.name)
        for _ in range(FURTHER):
            for each in contestants:
                each.go()
        further = {each.name: list(each.seconds) for each in contestants}
        for each in contestants:
            each.go()  # The first round of the long fit compiles for its data.
            each.seconds.clear()
        for number in range(rounds):
            print(f"{model} on {devices}: round {number + 1}", file=sys.stderr, flush=True)
            for each in contestants:
                each.go()
    finally:
        stop(contestants)
    return {
        "model": model,
        "devices": devices,
        "failed": failed,
        "contestants": {
            each.name: {
                "seconds": each.seconds,
                "steps": each.steps,
                "first": first[each.name],
                "further": further[each.name],
                "memory": [each.memory],
            }
            for each in contestants
        },
    }


def row(found: dict[str, Any]) -> str:
    """A row of the table."""
    each = found["contestants"]
    ours, keras, jax = (each.get(name) for name in ("kerasdist", "keras-tf", "keras-jax"))

    def of(name: str) -> str:
        if name not in each:
            return "fails" if name in found["failed"] else ""
        return f"{1e3 * statistics.median(each[name]['seconds']) / each[name]['steps']:.1f}"

    def times(one: Any, other: Any) -> str:
        return "" if other is None else f"{ratio(one['seconds'], other['seconds']):.2f}"

    def by(key: str, unit: float, digits: str) -> str:
        of_keras = "" if keras is None else f" ({ratio(ours[key], keras[key]):.2f})"
        return f"{statistics.median(ours[key]) * unit:{digits}}{of_keras}"

    others = [each for each in (keras, jax) if each]
    best = min(others, key=lambda k: statistics.median(k["seconds"]), default=None)
    cells = [
        found["model"],
        *(of(name) for name in ("kerasdist", "keras-tf", "keras-jax")),
        times(ours, keras),
        times(ours, jax),
        times(ours, best),
        times(each["deterministic"], ours),
        by("first", 1, ".1f"),
        by("further", 1e3, ".0f"),
        by("memory", 2**-20, ",.0f"),
    ]
    return f"| {' | '.join(cells)} |"


def table(results: list[dict[str, Any]]) -> str:
    head = [
        "model",
        "kerasdist, ms per step",
        "keras-tf",
        "keras-jax",
        "÷ keras-tf",
        "÷ keras-jax",
        "÷ best",
        "det. ÷ default",
        "first step, s (÷ keras-tf)",
        "further fit, ms (÷ keras-tf)",
        "memory, MB (÷ keras-tf)",
    ]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    return "\n".join([*lines, *map(row, results)])


def versions_of(jax_python: str | None) -> dict[str, str]:
    if jax_python is None:
        return {}
    code = "import importlib.metadata as m; print(m.version('jax'))"
    output = subprocess.run([jax_python, "-c", code], check=True, capture_output=True, text=True)
    return {"jax": output.stdout.strip()}


def section(count: int, results: list[dict[str, Any]], jax_python: str | None) -> str:
    facts = about()
    facts["versions"] |= versions_of(jax_python)
    title = "One device" if count == 1 else f"{count} devices (logical CPUs that share two cores)"
    meaning = MEANING.format(count=title, how=HOW[min(count, 2)])
    return f"{meaning}\n\n{table(results)}\n\n{as_line(facts)}."


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="*", choices=[*MODELS, []], default=[])
    parser.add_argument("--devices", type=int, nargs="*", default=list(COUNTS))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--jax-python")
    parser.add_argument("--results", type=Path)
    parser.add_argument("--write", action="store_true", help="write benchmarks/RESULTS.md")
    given = parser.parse_args()
    lines = (
        given.results.read_text().splitlines() if given.results and given.results.exists() else []
    )
    known = {(each["model"], each["devices"]): each for each in map(json.loads, lines)}
    for count in given.devices:
        results = []
        for model in given.models or MODELS:
            if (model, count) not in known:
                found = measure(model, count, given.rounds, given.jax_python)
                known[model, count] = found
                print(row(found), flush=True)
                if given.results:
                    with given.results.open("a") as file:
                        print(json.dumps(found), file=file)
            results.append(known[model, count])
        part = section(count, results, given.jax_python)
        print(f"\n{part}\n", flush=True)
        if given.write:
            write_section(f"breadth-{count}", part)


if __name__ == "__main__":
    main()
