"""Compares all programs with their references on several numbers of devices, as a table.

python -m tests.programs.compare --names gan functional --devices 1,2,4 --deterministic
python -m tests.programs.compare --repeatable      # plain Keras twice: the same bits?
"""

import argparse
import importlib.util
import itertools
import sys
from dataclasses import dataclass, field

from tests.programs import harness
from tests.programs.expectations import PROGRAMS
from tests.programs.harness import Setup

SHARDS = 4  # For programs whose result depends on the shards, and for equal bits.
TOGETHER = 10  # Programs per start of the harness, which imports Keras once for all of them.


@dataclass
class Verdict:
    """What came out for one program."""

    program: object
    differences: dict = field(default_factory=dict)  # Number of devices → (difference, name).
    bits: bool | None = None
    refused: str = ""
    problems: list = field(default_factory=list)

    def row(self, devices):
        bits = {None: "", True: "equal", False: "differ"}[self.bits]
        cells = [f"{self.differences[n][0]:.1e}" if n in self.differences else "" for n in devices]
        ending = "; ".join(self.problems) or (f"refused: {self.refused}" if self.refused else "ok")
        return [self.program.name, self.program.compares_with, *cells, bits, ending]


def lacking(program):
    """The package that a program needs and this machine does not have, or None."""
    needs = {"keras_hub": program.keras_hub, "torch": program.torch}
    missing = [name for name, need in needs.items() if need and not importlib.util.find_spec(name)]
    return missing[0] if missing else None


def groups(names, together=TOGETHER):
    """Lists of programs that one harness can run, because their setups are the same."""

    def kind(name):
        return PROGRAMS[name].compares_with, PROGRAMS[name].floatx

    for _, same in itertools.groupby(sorted(names, key=lambda name: (kind(name), name)), kind):
        same = list(same)
        yield from (same[start : start + together] for start in range(0, len(same), together))


def compare(names, devices, deterministic=False):
    """Runs programs of one group with all setups; a Verdict for each."""
    if not names:
        return
    first = PROGRAMS[names[0]]
    shards = None if first.compares_with == "keras" else SHARDS
    on_one = Setup("kerasdist", 1, shards, floatx=first.floatx)
    setup = Setup(floatx=first.floatx) if first.compares_with == "keras" else on_one
    reference = harness.run(names, setup)
    runs = {n: Setup("kerasdist", n, shards, floatx=first.floatx) for n in devices}
    results = {
        n: reference if setup == asked else harness.run(names, asked) for n, asked in runs.items()
    }
    exact = {}
    if deterministic:
        for n in devices:
            asked = Setup("kerasdist", n, SHARDS, deterministic=True, floatx=first.floatx)
            exact[n] = harness.run(names, asked)
    for name in names:
        yield judge(
            PROGRAMS[name],
            reference[name],
            {n: result[name] for n, result in results.items()},
            {n: result[name] for n, result in exact.items()},
        )


def judge(program, reference, results, exact):
    """The Verdict on a program's results, by number of devices, and its deterministic ones."""
    from tests.programs import outcome

    verdict = Verdict(program)
    everything = [reference, *results.values(), *exact.values()]
    failed = [result for result in everything if result.error]
    if failed:
        message = failed[0].error.splitlines()[0]
        expected = bool(program.refused) and all(
            result.refused and program.refused in result.error for result in failed
        )
        if expected and not reference.error:
            verdict.refused = message
        else:
            verdict.problems.append(message)
        return verdict
    if not any(name.startswith("weights/") for name in reference.values):
        verdict.problems.append("it left no weights")
    for n, result in results.items():
        difference, name = outcome.largest_difference(result.values, reference.values)
        verdict.differences[n] = difference, name
        if difference > program.tolerance:
            verdict.problems.append(f"{n} devices: {name} differs by {difference:.1e}")
    if exact:
        one, *others = exact.values()
        verdict.bits = all(outcome.same_bits(other.values, one.values) for other in others)
        if not verdict.bits:
            verdict.problems.append("deterministic runs differ in bits")
    return verdict


def repeat(names):
    """Runs programs twice in plain Keras, in both precisions; a line for each that differs."""
    from tests.programs import outcome

    for group in groups(names):
        for floatx in ("float32", "float64"):
            some = [name for name in group if floatx == "float32" or PROGRAMS[name].float64]
            if not some:
                continue
            first = harness.run(some, Setup(floatx=floatx))
            second = harness.run(some, Setup(floatx=floatx))
            for name in some:
                error = first[name].error or second[name].error
                if error:
                    yield name, floatx, error.splitlines()[0]
                elif outcome.same_bits(first[name].values, second[name].values):
                    yield name, floatx, ""
                else:
                    apart = outcome.largest_difference(second[name].values, first[name].values)
                    yield name, floatx, f"not repeatable: {apart[1]} differs by {apart[0]:.1e}"


def show(cells):
    widths = [30, 11] + [9] * (len(cells) - 4) + [7]
    padded = [f"{cell:{width}}" for cell, width in zip(cells, widths, strict=False)]
    print(" ".join([*padded, *cells[len(widths) :]]), flush=True)


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", nargs="+", choices=PROGRAMS, default=list(PROGRAMS))
    parser.add_argument("--devices", default="1,2,4")
    parser.add_argument("--deterministic", action="store_true", help="compare bits, too")
    parser.add_argument("--repeatable", action="store_true", help="only plain Keras, twice")
    options = parser.parse_args(argv)
    for name in options.names:
        if lacking(PROGRAMS[name]):
            print(f"{name}: skipped, it needs {lacking(PROGRAMS[name])}")
    names = [name for name in options.names if not lacking(PROGRAMS[name])]
    bad = 0
    if options.repeatable:
        for name, floatx, problem in repeat(names):
            print(f"{name:30} {floatx} {problem or 'same bits'}", flush=True)
            bad += bool(problem)
        return 1 if bad else 0
    devices = [int(part) for part in options.devices.split(",")]
    show(["program", "compares", *[f"{n} devices" for n in devices], "bits", "result"])
    for group in groups(names):
        for verdict in compare(group, devices, options.deterministic):
            show(verdict.row(devices))
            bad += bool(verdict.problems)
    print(f"{len(names) - bad} of {len(names)} programs as expected")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
