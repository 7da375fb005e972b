"""Runs the trials of a study: each in its own process, several at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kerasdist.cli.tune.arguments import TuneOptions
from kerasdist.cli.tune.progress import Progress
from kerasdist.cli.tune.space import Value
from kerasdist.cli.tune.study import PRUNED_AT, Study
from kerasdist.errors import KerasdistError, first_line
from kerasdist.runs.lock import is_locked
from kerasdist.runs.metrics_log import best_epoch, monitored

# A trial whose process was killed is continued so often.
_MOST_STARTS = 2
# If the first so many trials fail, the others would, too.
_MOST_FAILURES = 3
# How long the process of a trial may take to save and end after its study's process was killed.
_PATIENCE_SECONDS = 300.0
_LOOK_EVERY = 0.1

# Is told of a trial that starts or ends: its number from 1, its settings, its outcome and value.
Tell = Callable[[int, dict[str, Value], str, float | None], None]


class _InterruptedError(Exception):
    """The trial stays unfinished: another start continues it."""


class Jobs:
    """Takes trials of a study until there are as many as asked for."""

    def __init__(
        self, tune: TuneOptions, study: Study, tell: Tell, progress: Progress | None = None
    ):
        self._tune, self._study, self._tell = tune, study, tell
        self._progress = progress
        self._stop = threading.Event()
        self._processes: set[subprocess.Popen[str]] = set()
        self._errors: list[BaseException] = []
        self.num_run = 0

    def run(self, devices: Sequence[str | None]) -> None:
        """Runs as many trials at a time as there are `devices`: what each may use."""
        # Not `join`: if a signal interrupts it, Python 3.11 takes the thread for finished.
        ended = [threading.Event() for _ in devices]
        for each, end in zip(devices, ended, strict=True):
            threading.Thread(target=self._work, args=(each, end)).start()
        try:
            _wait_for(ended)
        except BaseException:
            self._stop.set()
            for process in list(self._processes):
                process.terminate()  # It saves.
            _wait_for(ended)
            raise
        if self._errors:
            raise self._errors[0]

    def _work(self, devices: str | None, ended: threading.Event) -> None:
        try:
            while not self._stop.is_set():
                most = self._tune.fit.run["trials"]
                with self._study.next(most, self._tune.space) as found:
                    if found is None:
                        return
                    self._one(*found, devices)
        except _InterruptedError:
            self._stop.set()
        except BaseException as error:  # noqa: BLE001 - raised again in the main thread
            self._errors.append(error)
            self._stop.set()
        finally:
            ended.set()

    def _one(self, trial: Any, settings: dict[str, Value], devices: str | None) -> None:
        number = trial.number + 1
        self._tell(number, settings, "started", None)
        if self._progress is not None:
            self._progress.begin(number)
        run = self._study.run_of(trial.number)
        for _ in range(_MOST_STARTS):
            end = self._train(trial, settings, run, devices)
            if end["end"] != "killed":
                break
        found = best_epoch(run, self._tune.monitor)
        value = None if found is None else found[1].value
        outcome = end["end"]
        if outcome == "interrupted":
            raise _InterruptedError
        if outcome == "finished" and trial.user_attrs.get(PRUNED_AT) is not None:
            outcome = "pruned"
        if outcome == "finished" and value is None:
            outcome, end = "failed", {"error": f"no epoch has a value of {self._study.monitor!r}"}
        if outcome in ("failed", "usage", "killed"):
            reason = end.get("error", "its process was killed")
            self._study.finish(trial, f"failed: {reason}", value)
            self._give_up(number, outcome, reason)
        else:
            self._study.finish(trial, outcome, value)
        self.num_run += 1
        if self._progress is not None:
            self._progress.end(number)
        self._tell(number, settings, outcome, value)

    def _give_up(self, number: int, outcome: str, reason: str) -> None:
        """Raises if more trials would fail, too."""
        trials = self._study.trials()
        failed = [t for t in trials if t.state.name == "FAIL"]
        if len(failed) == len(trials) and (outcome == "usage" or len(failed) >= _MOST_FAILURES):
            raise KerasdistError(
                f"Trial {number} failed: {reason} Expected a recipe that trains. Correct it until "
                f"`kerasdist fit` works with the settings of {self._study.run_of(number - 1)}."
            )

    def _train(
        self, trial: Any, settings: dict[str, Value], run: Path, devices: str | None
    ) -> dict[str, Any]:
        """Trains or continues a trial. Returns how that ended."""
        self._wait_until_free(run)
        argv = [*self._tune.of_trial(settings), "--run-dir", str(run)]
        argv += [] if devices is None else ["--devices", devices]
        log = self._study.folder / "logs" / f"{run.name}.log"
        log.parent.mkdir(exist_ok=True)
        with open(log, "a") as errors:
            # In a group of its own: Ctrl-C reaches this process only, which lets the trial save.
            process = subprocess.Popen(
                [sys.executable, "-m", "kerasdist.cli.tune.trial"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,
            )
        self._processes.add(process)
        try:
            if self._stop.is_set():
                process.terminate()
            return self._talk(trial, process, {"argv": argv, "parent": os.getpid()}, log)
        finally:
            process.kill()
            process.wait()
            self._processes.discard(process)
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def _talk(
        self, trial: Any, process: subprocess.Popen[str], request: dict[str, Any], log: Path
    ) -> dict[str, Any]:
        end: dict[str, Any] = {}
        _send(process, request)
        for line in process.stdout or ():
            answer = json.loads(line)
            if "epoch" in answer:
                if self._progress is not None:
                    self._progress.epoch(trial.number + 1, answer["epoch"])
                _send(process, {"stop": self._report(trial, answer)})
            else:
                end = answer
        code = process.wait()
        if end:
            return end
        if self._stop.is_set() or code in (-signal.SIGTERM, -signal.SIGINT):
            return {"end": "interrupted"}
        if code < 0:
            name = signal.Signals(-code).name
            return {"end": "killed", "error": f"its process was ended by {name}."}
        lines = log.read_text(errors="replace").strip().splitlines() or ["it gave no reason"]
        return {"end": "failed", "error": first_line(Exception(lines[-1]))}

    def _report(self, trial: Any, answer: dict[str, Any]) -> bool:
        name = monitored(answer["logs"], self._tune.monitor)
        value = answer["logs"].get(name)
        return value is not None and self._study.report(trial, answer["epoch"], value)

    def _wait_until_free(self, run: Path) -> None:
        """The process that trained the run before may still be saving it."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while is_locked(run) and time.monotonic() < until and not self._stop.is_set():
            time.sleep(0.2)


def _wait_for(events: Sequence[threading.Event]) -> None:
    """Signals are heard between two looks."""
    while not all(event.is_set() for event in events):
        time.sleep(_LOOK_EVERY)


def _send(process: subprocess.Popen[str], content: dict[str, Any]) -> None:
    if process.stdin is not None:
        try:
            print(json.dumps(content), file=process.stdin, flush=True)
        except BrokenPipeError:
            return  # It has ended. Its exit code says why.
