"""`kerasdist fit RECIPE --find-batch-size`: each trial in its own process, watched by this one."""

from __future__ import annotations

import contextlib
import json
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import IO, Any

from kerasdist.cli.finding.choice import FLAGS, command, with_values, without
from kerasdist.cli.fit_arguments import FitOptions, parse_fit
from kerasdist.errors import KerasdistError
from kerasdist.finders import host_memory
from kerasdist.finders.batch_search import BatchSizes, Limits, Search, Trial, gigabytes
from kerasdist.phases import prose
from kerasdist.phases.phase import phase
from kerasdist.runs.atomic import as_json

# How long the search may take, and the timed steps of a trial, in seconds.
SECONDS, TRIAL_SECONDS = 300.0, 1.5
# The part of the machine's free memory that a trial on CPUs may use.
MEMORY_PART = 0.8
# The first size, if the command names none.
_START = 32
# The sizes below the command's own that are tried first: it may not fit.
_SMALLER = 4
_LOOK_EVERY = 0.05


def find(options: FitOptions, argv: Sequence[str]) -> int:
    """Searches, and shows what it found."""
    run = options.run
    given = run["batch_size"] or options.data_arguments.get("batch_size") or _START
    # A recipe may choose fewer epochs for smaller batches, and refuse other settings then.
    epochs = {} if run["epochs"] is None else {"--epochs": run["epochs"]}
    trials = Trials(with_values(argv, epochs))
    say = _Say(run)
    say(f"batch sizes of {' '.join(argv[:1])}: each trial has its own process; nothing is kept")
    # The first trial tells what the devices and the data are.
    start = max(1, given // _SMALLER)
    limits = Limits(
        start=start,
        least=1,
        most=2**30,
        seconds=SECONDS,
        memory=trials.memory,
    )
    search = Search(limits, trials.attempt, lambda trial: say(_line(trial)))
    trials.on_ready = lambda ready: search.learn(least=ready["least"], most=ready["examples"])
    found = search.run()
    line = command(_to_train(argv, found.fastest, epochs))
    if run["json"]:
        print(as_json({**_fields(found), **trials.about, "command": line}))
    elif not run["quiet"]:
        _show(found, trials, line)
    return 0


def _to_train(argv: Sequence[str], size: int, epochs: dict[str, Any]) -> list[str]:
    """The arguments to train with a batch size: with the epochs, if it does not work without."""
    found = with_values(argv, {"--batch-size": size})
    try:
        parse_fit(found)
    except KerasdistError:
        return with_values(found, epochs)
    return found


class _Say:
    """Prints lines for people; nothing with `--json` and `--quiet`."""

    def __init__(self, run: dict[str, Any]):
        self._is_on = not (run["json"] or run["quiet"])

    def __call__(self, text: str) -> None:
        if self._is_on:
            prose.say(text)


class Trials:
    """Runs one trial after the other, each in its own process.

    Attributes:
        about: What the first trial told about devices and data.
        on_ready: Called with that, before the first trial is over.
    """

    def __init__(self, argv: Sequence[str]):
        # The trial's process prints nothing for people.
        self._argv = [*without(argv, (*FLAGS, "--json")), *(["--quiet"] * ("--quiet" not in argv))]
        self.about: dict[str, Any] = {}
        self.on_ready: Any = None

    def memory(self) -> int | None:
        """What a process may use: GPUs say themselves what is too much."""
        if self.about.get("is_gpu"):
            return None
        free = host_memory.free()
        return None if free is None else int(MEMORY_PART * free)

    def attempt(self, size: int) -> Trial:
        """Tries one batch size."""
        request = {
            "argv": with_values(self._argv, {"--batch-size": size}),
            "batch_size": size,
            "seconds": TRIAL_SECONDS,
        }
        limit = host_memory.free()
        limit = None if limit is None else int(MEMORY_PART * limit)
        with (
            phase(f"trying a batch of {size:,}"),
            tempfile.TemporaryFile("w+") as errors,
            _started(request, errors) as process,
        ):
            answers, was_stopped = self._watch(process, limit)
            code = process.wait()
            errors.seek(0)
            return self._judged(size, answers, was_stopped, code, errors.read())

    def _watch(
        self, process: subprocess.Popen[str], limit: int | None
    ) -> tuple[list[dict[str, Any]], str]:
        """Reads the answers until the process ends. Stops it before it takes too much memory."""
        answers: list[dict[str, Any]] = []
        out: Any = process.stdout
        while True:
            if select.select([out], [], [], _LOOK_EVERY)[0]:
                line = out.readline()
                if not line:
                    return answers, ""
                answers.append(json.loads(line))
                self._learn(answers[-1])
            used = host_memory.resident(process.pid)
            if limit is not None and used > limit:
                process.kill()
                return answers, f"needs more than {gigabytes(limit)} of memory"

    def _learn(self, answer: dict[str, Any]) -> None:
        if "title" in answer and not self.about:
            self.about = answer
            if self.on_ready is not None:
                self.on_ready(answer)

    def _judged(
        self,
        size: int,
        answers: list[dict[str, Any]],
        was_stopped: str,
        code: int,
        errors: str,
    ) -> Trial:
        last = answers[-1] if answers else {}
        if "trial" in last:
            return Trial(**last["trial"])
        if was_stopped:
            return Trial(size, fits=False, note=was_stopped)
        if "error" in last:
            raise KerasdistError(last["error"])
        if code in (-signal.SIGKILL, -signal.SIGABRT, -signal.SIGSEGV, -signal.SIGBUS):
            name = signal.Signals(-code).name
            return Trial(size, fits=False, note=f"ended its process ({name})")
        lines = errors.strip().splitlines() or ["it gave no reason"]
        raise KerasdistError(
            f"The training failed with a batch of {size}: {lines[-1]} Correct the recipe until "
            "`kerasdist fit` with the same options and `--dry-run` works."
        )


@contextlib.contextmanager
def _started(request: dict[str, Any], errors: IO[str]) -> Any:
    process = subprocess.Popen(
        [sys.executable, "-m", "kerasdist.cli.finding.trial"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    try:
        if process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                print(json.dumps(request), file=process.stdin, flush=True)
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def _line(trial: Trial) -> str:
    stamp = time.strftime("%H:%M:%S")
    if not trial.fits:
        return f"{stamp}: batch {trial.batch_size:,}: {trial.note}"
    return (
        f"{stamp}: batch {trial.batch_size:,}: {trial.examples_per_second:,.0f} examples/s, "
        f"{trial.seconds_per_step:.3g} s per step, {gigabytes(trial.memory or 0)}"
    )


def _fields(found: BatchSizes) -> dict[str, Any]:
    return {
        "event": "batch_sizes",
        "largest": found.largest,
        "fastest": found.fastest,
        "ended": found.ended,
        "trials": [vars(trial) for trial in found.trials],
    }


def _show(found: BatchSizes, trials: Trials, line: str) -> None:
    from rich.console import Console
    from rich.table import Table

    devices = trials.about["devices"]
    table = Table(title=f"{trials.about['title']} on {', '.join(devices)}")
    per_device = ["per device"] if len(devices) > 1 else []
    for column in ("batch", *per_device, "examples/s", "s per step", "memory", ""):
        table.add_column(column, justify="left" if not column else "right", no_wrap=bool(column))
    for trial in found.trials:
        cells = [f"{trial.batch_size:,}"]
        cells += [f"{trial.batch_size / len(devices):,.4g}"] * bool(per_device)
        if trial.fits:
            cells += [f"{trial.examples_per_second:,.0f}", f"{trial.seconds_per_step:.3g}"]
            cells += [gigabytes(trial.memory or 0), _marks(found, trial)]
        else:
            cells += ["", "", "", trial.note]
        table.add_row(*cells)
    Console(markup=False, emoji=False).print(table)
    what = "the fullest GPU" if trials.about["is_gpu"] else "the process"
    text = [
        f"largest  {found.largest:,}: larger ones were not used, because {found.ended}",
        f"fastest  {found.fastest:,} (the smallest within 5% of the best speed)",
        f"memory   the peak of {what}",
        f"train    {line}",
        "         Another batch size needs another learning rate: `--find-lr` finds one.",
    ]
    prose.say("\n".join(text))


def _marks(found: BatchSizes, trial: Trial) -> str:
    marks = [("fastest", found.fastest), ("largest", found.largest)]
    return ", ".join(name for name, size in marks if size == trial.batch_size)
