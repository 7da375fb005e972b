"""`kerasdist bench`: measures how fast several numbers of devices train."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import tensorflow as tf
from rich.console import Console
from rich.table import Table

from kerasdist.cli.bench import picture
from kerasdist.cli.bench.results import Bench, Measurement, verdict
from kerasdist.cli.bench.rounds import FEWEST_STEPS
from kerasdist.cli.fit_arguments import FitOptions
from kerasdist.cli.job import Job
from kerasdist.errors import KerasdistError
from kerasdist.phases.phase import phase
from kerasdist.phases.prose import say
from kerasdist.runs import provenance
from kerasdist.runs.atomic import as_json, write_text

JSON, PICTURE = "bench.json", "bench.svg"


class Worker:
    """A process that trains, one round at a time, and is asked for its times."""

    def __init__(self, request: dict[str, Any], measurement: Measurement):
        self.measurement = measurement
        self.examples_per_step = 0.0
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - until `close`
        self._process = subprocess.Popen(
            [sys.executable, "-m", "kerasdist.cli.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.ask(request)

    def ask(self, content: dict[str, Any]) -> None:
        """Sends the process an object."""
        if self._process.stdin is not None:
            try:
                print(json.dumps(content), file=self._process.stdin, flush=True)
            except BrokenPipeError:
                self._fail()

    def answer(self) -> dict[str, Any]:
        """Waits for the next object from the process."""
        line = self._process.stdout.readline() if self._process.stdout is not None else ""
        if not line:
            self._fail()
        content: dict[str, Any] = json.loads(line)
        return content

    def _fail(self) -> NoReturn:
        self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().strip().splitlines() or ["it gave no reason"]
        measured = self.measurement
        raise KerasdistError(
            f"The training failed while measuring {measured.runner} on {measured.devices} devices: "
            f"{lines[-1]} Correct the recipe until `kerasdist fit` with the same options works."
        )

    def close(self) -> None:
        """Ends the process."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()


def bench(options: FitOptions, argv: list[str]) -> int:
    """`kerasdist bench`; each measuring process parses `argv` again."""
    run = options.run
    counts = sorted({int(count) for count in run["counts"].split(",")})
    job = Job(options)
    folder = Path(run["output"] or Path("bench") / job.name)
    num_gpus = len(tf.config.list_physical_devices("GPU"))
    kind = "GPU" if num_gpus >= counts[-1] else "CPU"
    result = _planned(job.name, run, counts, shares_cores=kind == "CPU")
    measure([*result.strong, *result.weak, *result.others], argv, kind, run)
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{kind}:{i}" for i in range(counts[-1])]
    content = {**result.fields(), "environment": provenance.describe(names)}
    write_text(folder / JSON, as_json(content) + "\n")
    write_text(folder / PICTURE, picture.svg(result))
    if run["json"]:
        print(as_json(content))
    elif not run["quiet"]:
        show(result)
        print(f"{folder / JSON}, {folder / PICTURE}")
    return 0


def _planned(name: str, run: dict[str, Any], counts: list[int], *, shares_cores: bool) -> Bench:
    """The measurements to take, still without their rates."""
    batch_size = run["batch_size"]
    if batch_size is not None and batch_size < counts[-1]:
        raise KerasdistError(
            f"Received `--batch-size {batch_size}` and `--counts {run['counts']}`. Expected at "
            "least one example per device. Use a larger batch, or fewer devices."
        )
    strong = [Measurement("kerasdist", count, batch_size) for count in counts]
    weak = [
        Measurement("kerasdist", count, batch_size * count // counts[0])
        for count in counts[1:]
        if batch_size is not None
    ]
    others = [Measurement("keras", m.devices, m.batch_size) for m in strong]
    return Bench(name, strong, weak, others if run["against"] else [], shares_cores)


def measure(
    measurements: Sequence[Measurement], argv: list[str], kind: str, run: dict[str, Any]
) -> None:
    """Fills in the measurements. Each has its own process; the processes take turns."""
    workers: list[Worker] = []
    try:
        with phase("preparing the measurements", len(measurements)) as preparing:
            for each in measurements:
                with phase(f"{each.runner}, {each.devices} device{'s' * (each.devices > 1)}"):
                    worker = Worker(_request(each, argv, kind), each)
                    workers.append(worker)
                    # One process at a time, so that no other slows down its first step.
                    _prepare(worker, run)
                preparing.advance()
        with phase("measuring", run["rounds"] * len(workers)) as measuring:
            for _ in range(run["rounds"]):
                for worker in workers:
                    measure_round(worker)
                    measuring.advance()
        with phase("reading the profiles"):
            for worker in workers:
                worker.measurement.split = worker.answer()["split"]
    finally:
        for worker in workers:
            worker.close()


def _request(each: Measurement, argv: list[str], kind: str) -> dict[str, Any]:
    names = [f"{kind}:{i}" for i in range(each.devices)]
    return {"argv": argv, "names": names, "runner": each.runner, "batch_size": each.batch_size}


def _prepare(worker: Worker, run: dict[str, Any]) -> None:
    """Chooses the number of steps from a trial, and lets the first round compile."""
    trial = worker.answer()
    worker.measurement.first_step = trial["first_step"]
    steps = max(FEWEST_STEPS, int(run["seconds"] / trial["seconds_per_step"]))
    worker.ask({"steps": steps, "rounds": run["rounds"]})
    worker.examples_per_step = trial["examples_per_step"]
    worker.answer()  # The first round compiles, and is not counted.


def measure_round(worker: Worker) -> None:
    """One round. It counts as the steps that it had, which need not be those that were planned."""
    worker.ask({"go": True})
    took = worker.answer()
    measured = worker.measurement
    measured.rates.append(took["steps"] * worker.examples_per_step / took["seconds"])
    measured.memory = max(measured.memory, took["memory"])


def show(result: Bench) -> None:
    """Prints two tables, and what they mean."""
    console = Console(markup=False, emoji=False)
    limit = " (at most 1: the same cores)" if result.shares_cores else " (1 is perfect)"
    rounds = len(result.strong[0].rates)
    speed, step = Table(), Table()
    others = ["× Keras"] if result.others else []
    for column in ("devices", "batch", "examples/s", "±", "scaling", "memory", *others):
        speed.add_column(column, justify="right", no_wrap=True)
    for column in ("devices", "batch", "ms", "input", "compute", "all-reduce", "host", "first"):
        step.add_column(column, justify="right", no_wrap=True)
    for each in (*result.strong, *result.weak):
        name = [str(each.devices), "" if each.batch_size is None else f"{each.batch_size:,}"]
        cells = [f"{each.rate:,.1f}", f"{each.spread:.1%}", f"{result.efficiency(each):.2f}"]
        cells.append(f"{each.memory / 2**30:.2f} GB")
        if others:
            ratio = result.against(each)
            cells.append("" if ratio is None else f"{ratio:.2f}")
        speed.add_row(*name, *cells)
        step.add_row(*name, *_parts(each), f"{each.first_step:.1f} s")
    # As a table's title, a text would be broken at the width of the table.
    for title, table in (
        (f"{result.name}: median of {rounds} rounds; scaling{limit}", speed),
        ("where the time of a step goes", step),
    ):
        console.print(title, style="italic", highlight=False, markup=False)
        console.print(table)
    for line in verdict(result):
        say(f"- {line}")


def _parts(measurement: Measurement) -> list[str]:
    if measurement.split is None:
        return [""] * 5
    shares = [f"{measurement.share(name):.1%}" for name in measurement.split]
    return [f"{1e3 * sum(measurement.split.values()):.3g}", *shares]
