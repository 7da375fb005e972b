"""Measures a further `fit` of the same model: its time, and the memory that each one leaves behind.

python benchmarks/further_fits.py             # writes the section of benchmarks/RESULTS.md
python benchmarks/further_fits.py --fits 20   # a quick look, which also writes it

kerasdist and Keras are separate processes, and their fits take turns. Each fit has 10 steps of a
small network. The memory is the growth of the resident memory from the 10th fit to the last one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from typing import Any

from contest import Contestant, launch, ratio, stop
from contestants import Mlp, Rounds, _strategy
from facts import about, as_line
from results_page import write_section

STEPS, WARM = 10, 10
MEANING = """\
A `fit` of 10 steps, again and again, of the same model (16-64-10, Adam, batches of 32), in turns
with Keras's. Memory: what each fit adds to the process, after the first 10 fits."""


def fits(rounds: Rounds, model: Any, fit: Callable[..., Any]) -> None:
    x, y = Mlp.data()
    x, y = x[: STEPS * Mlp.batch_size], y[: STEPS * Mlp.batch_size]
    while rounds.begin():
        fit(model, x, y, batch_size=Mlp.batch_size)
        rounds.end()


def kerasdist(devices: int, rounds: Rounds) -> None:
    import kerasdist as package

    package.logical_cpus(devices)
    model = Mlp.keras()
    fits(rounds, model, lambda *a, **k: package.fit(*a, **k, devices=devices, progress=False))


def keras(devices: int, rounds: Rounds) -> None:
    with _strategy(devices).scope():
        model = Mlp.keras()
    fits(rounds, model, lambda model, *a, **k: model.fit(*a, **k, verbose=0))


def measure(devices: int, num_fits: int) -> list[str]:
    command = [sys.executable, __file__, "--contestant"]
    names = ("kerasdist", "keras")
    found = [
        launch([*command, name, "--devices", str(devices)], name, devices, 1) for name in names
    ]
    memory: dict[str, list[float]] = {name: [] for name in names}
    try:
        for each in found:
            each.first_round = each.answer()["seconds"]
        for number in range(num_fits - 1):
            print(f"{devices} devices: fit {number + 2}", file=sys.stderr, flush=True)
            for each in found:
                memory[each.name].append(each.go()["now"])
    finally:
        stop(found)
    keras = found[-1]
    return [_row(each, memory[each.name], keras) for each in found]


def _row(each: Contestant, memory: list[float], keras: Contestant) -> str:
    times = each.seconds[WARM - 1 :]
    of_keras = ratio(times, keras.seconds[WARM - 1 :])
    grown = (memory[-1] - memory[WARM - 2]) / (len(memory) - WARM + 1)
    return (
        f"| {each.name} | {each.devices} | {each.first_round:.2f} s "
        f"| {1e3 * statistics.median(times):.0f} ms | {of_keras:.2f} | {grown / 2**20:.3f} MB |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fits", type=int, default=100)
    parser.add_argument("--contestant", help=argparse.SUPPRESS)
    parser.add_argument("--devices", type=int, default=1, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.contestant:
        contestants = {"kerasdist": kerasdist, "keras": keras}
        contestants[given.contestant](given.devices, Rounds(STEPS))
        return
    facts = about()
    lines = [
        "| | devices | first fit | a further fit | ÷ Keras | memory per fit |",
        "|---|---|---|---|---|---|",
    ]
    for devices in (1, 2):
        lines += measure(devices, given.fits)
    part = "\n".join([MEANING, "", *lines, "", f"{as_line(facts)}."])
    print(part)
    write_section("further-fits", part)


if __name__ == "__main__":
    main()
