"""`kerasdist tune RECIPE`: searches settings with Optuna, and shows what it found."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from kerasdist.cli.tune.arguments import TuneOptions
from kerasdist.cli.tune.jobs import Jobs
from kerasdist.cli.tune.progress import showing
from kerasdist.cli.tune.space import Value
from kerasdist.cli.tune.study import FOLDER, OUTCOME, SETTINGS, Study
from kerasdist.errors import KerasdistError
from kerasdist.phases.prose import say
from kerasdist.phases.text import decimal
from kerasdist.reports import tuning
from kerasdist.reports.tuning import StudyFacts, TrialRow
from kerasdist.runs.atomic import as_json, write_text
from kerasdist.runs.file_names import REPORT
from kerasdist.runs.metrics_log import EPOCH, best_epoch, of_kind, read

_SIGTERM_CODE = 143
_SHOWN = 10


def tune(options: TuneOptions) -> int:
    """Runs the trials that are left, and shows the best settings."""
    run = options.fit.run
    folder = FOLDER / options.name
    study = Study(
        folder,
        options.identity(),
        monitor=options.monitor,
        prune=run["prune"],
        seed=options.seed,
    )
    shown = _Shown(options, study)
    devices = devices_of_jobs(run["jobs"], run["devices"])
    shown.begin()
    done = sum(trial.state.is_finished() for trial in study.trials())
    with _sigterm_as_exit(), showing(run["trials"], done, options.epochs) as progress:
        jobs = Jobs(options, study, shown.trial, progress)
        jobs.run(devices)
    shown.end(jobs.num_run)
    return 0


def devices_of_jobs(count: int, devices: str) -> list[str | None]:
    """What each of several trials at a time may use. None: what the command says."""
    if count == 1 or devices.lower().startswith("cpu"):
        return [None] * count
    done = subprocess.run(
        [sys.executable, "-m", "kerasdist", "devices", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    names = re.findall(r"GPU:(\d+)", done.stdout)
    return shares(count, devices, sorted({int(name) for name in names}))


def shares(count: int, devices: str, gpus: list[int]) -> list[str | None]:
    """Deals the GPUs that a command may use to as many trials at a time.

    Example:
        >>> shares(2, "auto", [0, 1, 2, 3]), shares(2, "auto", [])
        (['0,1', '2,3'], [None, None])
    """
    if not gpus:
        return [None] * count
    chosen = gpus
    if devices.isdigit():
        chosen = gpus[: int(devices)]
    elif devices != "auto":
        chosen = [int(number) for number in re.findall(r"\d+", devices)]
    if len(chosen) < count:
        raise KerasdistError(
            f"Received `--jobs {count}` with {len(chosen)} GPU{'s' * (len(chosen) != 1)}. Expected "
            "at most one job per GPU: each trial takes the memory of its GPUs. Use fewer jobs."
        )
    each = len(chosen) // count
    parts = [chosen[i * each : (i + 1) * each] for i in range(count)]
    return [",".join(map(str, p)) if len(p) > 1 else f"GPU:{p[0]}" for p in parts]


class _Shown:
    """Prints the trials, and keeps the page up to date."""

    def __init__(self, options: TuneOptions, study: Study):
        self._options, self._study = options, study
        self._run = options.fit.run
        self._guard = threading.Lock()

    def _say(self, text: str) -> None:
        if not (self._run["json"] or self._run["quiet"]):
            say(text)

    def _event(self, kind: str, **fields: Any) -> None:
        if self._run["json"]:
            print(as_json({"event": kind, **fields}), flush=True)

    def begin(self) -> None:
        space = ", ".join(f"{k} {v}" for k, v in self._options.space.described().items())
        done = len([t for t in self._study.trials() if t.state.is_finished()])
        wanted = self._run["trials"]
        self._say(f"study   {self._study.folder}, {done} of {wanted} trials done")
        self._say(f"search  {space}")
        self._event("start", study=str(self._study.folder), done=done, trials=wanted)

    def trial(
        self, number: int, settings: dict[str, Value], outcome: str, value: float | None
    ) -> None:
        """A trial started or ended."""
        with self._guard:
            about = ", ".join(f"{name} {as_text(v)}" for name, v in settings.items())
            found = "" if value is None else f", {self._study.monitor} {decimal(value)}"
            of = self._run["trials"]
            self._say(f"trial {number}/{of} {outcome}{found} ({about})")
            run = str(self._study.run_of(number - 1))
            fields = {"number": number, "outcome": outcome, "value": value, "run": run}
            self._event("trial", **fields, settings=settings)
            self._write_page()

    def end(self, num_run: int) -> None:
        """Shows the best trials, and what to do with them."""
        with self._guard:
            rows = self._write_page()
        wanted, folder = self._run["trials"], self._study.folder
        running = [row for row in rows if row.outcome == "running"]
        first = tuning.best(rows, is_higher_better=self._study.is_higher_better)
        command = None if first is None else self._command(first)
        if not num_run and not running:
            self._say(
                f"the study is finished: it has its {len(rows)} trials; more --trials than "
                f"{wanted} continue it"
            )
        elif running:
            numbers = ", ".join(str(row.number) for row in running)
            self._say(
                f"unfinished: trial {numbers}; the same command continues what no other process "
                "runs"
            )
        self._table(rows)
        if first is not None:
            self._say(f"best    trial {first.number}: {self._study.monitor} {first.value:.5g}")
            self._say(f"train   {command}")
        else:
            self._say("best    none: no trial has finished")
        self._say(f"page    {folder / REPORT}")
        self._event(
            "end",
            study=str(folder),
            trials=len(rows),
            best=None if first is None else vars(first),
            monitor=self._study.monitor,
            command=command,
            page=str(folder / REPORT),
        )

    def _command(self, row: TrialRow) -> str:
        return f"kerasdist fit {shlex.join(self._options.of_trial(row.settings))}"

    def _write_page(self) -> list[TrialRow]:
        rows = rows_of(self._study, self._options.monitor)
        first = tuning.best(rows, is_higher_better=self._study.is_higher_better)
        facts = StudyFacts(
            name=self._options.name,
            monitor=self._study.monitor,
            is_higher_better=self._study.is_higher_better,
            seed=self._options.seed,
            space=self._options.space.described(),
            num_wanted=self._run["trials"],
            command=None if first is None else self._command(first),
        )
        write_text(self._study.folder / REPORT, tuning.render(facts, rows))
        return rows

    def _table(self, rows: list[TrialRow]) -> None:
        if self._run["json"] or self._run["quiet"] or not rows:
            return
        from rich.console import Console
        from rich.table import Table

        names = list(dict.fromkeys(name for row in rows for name in row.settings))
        table = Table(title=f"the best of {len(rows)} trials")
        for column in ("trial", self._study.monitor, "epochs", *names, "outcome"):
            table.add_column(column, justify="right")
        ranked = tuning.ranked(rows, is_higher_better=self._study.is_higher_better)
        for row in ranked[:_SHOWN]:
            cells = [str(row.number), decimal(row.value or 0.0), str(row.epochs)]
            cells += [as_text(row.settings.get(name)) for name in names]
            table.add_row(*cells, row.outcome)
        Console(markup=False, emoji=False).print(table)


def as_text(value: Any) -> str:
    """A setting as people read it."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def rows_of(study: Study, monitor: str | None) -> list[TrialRow]:
    """The trials so far, from the study and from their runs."""
    rows = []
    for trial in study.trials():
        run = study.run_of(trial.number)
        found = best_epoch(run, monitor)
        outcome = trial.user_attrs.get(OUTCOME, "running")
        rows.append(
            TrialRow(
                number=trial.number + 1,
                outcome=outcome if trial.state.is_finished() else "running",
                value=None if found is None else found[1].value,
                epochs=len(of_kind(read(run), EPOCH)),
                settings=json.loads(as_json(trial.user_attrs.get(SETTINGS, {}))),
                run=run.name,
            )
        )
    return rows


@contextmanager
def _sigterm_as_exit() -> Iterator[None]:
    """SIGTERM lets the trials save, as Ctrl-C does."""

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(_SIGTERM_CODE)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
