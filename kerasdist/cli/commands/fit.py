"""`kerasdist fit`: trains a recipe, or a model and a data class, in a run's folder."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.cli import folder_choice
from kerasdist.cli.fit_arguments import FitOptions
from kerasdist.cli.job import FIT_OPTIONS, Job, names_of
from kerasdist.devices import cluster, worker
from kerasdist.devices.placement import Placement, place
from kerasdist.errors import DivergedError, KerasdistError, RunFailedError, first_line
from kerasdist.evaluation import examples
from kerasdist.reports import live
from kerasdist.runs import ownership
from kerasdist.runs.atomic import as_json, write_text
from kerasdist.runs.folder import REPORT, RESULT, RunFolder
from kerasdist.runs.lock import RunLockedError
from kerasdist.runs.reading import EVALUATION
from kerasdist.training import api
from kerasdist.training.progress import announcements
from kerasdist.training.progress.reporter import Reporter, mode_of
from kerasdist.training.signals import Terminated

# The options that concern a run's folder, for `kerasdist.fit`.
_RUN_OPTIONS = (
    *("save_every", "keep", "monitor", "on_nan", "init_from"),
    *("profile", "log_placement"),
)


def fit(options: FitOptions) -> int:
    """`kerasdist fit`."""
    names = names_of(options.run)
    placement = None if cluster.current() is None else place(names)
    with contextlib.nullcontext() if placement is None else placement.together():
        return _Fit(options, names, placement).run()


class _Fit:
    """One `kerasdist fit` on this process, which is alone or one of several workers."""

    def __init__(self, options: FitOptions, names: list[str], placement: Placement | None):
        self._options = options.run
        self._names, self._placement = names, placement
        self._is_chief = placement is None or placement.is_chief
        self._titles = names if placement is None else list(placement.titles)
        self._reporter = self._make_reporter()
        self._job = job = Job(options)
        self._validation = job.build_data("validation") if job.recipe is not None else None
        self._augment = job.recipe.build_augment() if job.recipe is not None else None
        self._data = job.build_data("train")

    def _make_reporter(self) -> Reporter:
        if not self._is_chief:
            return Reporter("silent")
        is_quiet = self._options["quiet"]
        return Reporter(mode_of("json" if self._options["json"] else False if is_quiet else "auto"))

    def run(self) -> int:
        """Trains, and returns the exit code."""
        if self._options["dry_run"]:
            return self._try()
        folder = folder_choice.choose(self._job, self._options) if self._is_chief else None
        if self._is_finished(folder):
            return 0
        arguments = {name: self._options[name] for name in _RUN_OPTIONS}
        arguments["summary_every"] = self._options["summary_every"] or None
        if folder is None:
            self._train(run_dir="the chief's", **arguments)
            return 0
        self._start(folder)
        with _result_of_a_stop(folder):
            history = self._train(run_dir=folder, **arguments)
        self._finish(folder.path, history)
        return 0

    def _train(self, **arguments: Any) -> Any:
        options = {name: self._options[name] for name in (*FIT_OPTIONS, "epochs", "log_every")}
        options |= {
            "devices": self._names,
            "progress": self._reporter,
            "validation_data": self._validation,
            "augment": self._augment,
        }
        return api.fit(self._job.build_model, self._data, **options | arguments)

    def _try(self) -> int:
        """`--dry-run`."""
        reporter = self._reporter
        where = ", ".join(self._titles)
        reporter.say(f"dry run: {self._job.name} on {where}, {_described(self._job, self._data)}")
        self._train(steps=2, validation_steps=1, log_every=1)
        reporter.say("dry run: two steps and one evaluation passed; nothing was kept")
        reporter.event("dry_run", status="passed")
        return 0

    def _is_finished(self, folder: RunFolder | None) -> bool:
        """Whether there is nothing left to train. The chief decides and says so."""
        is_finished = int(folder is not None and folder_choice.is_finished(self._job, folder.path))
        if self._placement is not None:
            (is_finished,) = self._placement.of_chief(is_finished)
        if is_finished and folder is not None:
            self._reporter.say(
                f"run {folder.path} is finished; --no-resume starts a new run, more --epochs "
                "continue it"
            )
            self._reporter.event("finished", run=str(folder.path))
        return bool(is_finished)

    def _start(self, folder: RunFolder) -> None:
        run, job = str(folder.path), self._job
        worker.report(run=run)
        self._reporter.event(
            "start", run=run, name=job.name, dataset=job.source, devices=self._titles
        )

    def _finish(self, path: Path, history: Any) -> None:
        """Writes the report, and says how the run ended."""
        result = json.loads((path / RESULT).read_text())
        with _report_at_the_end(self._reporter, path):
            if self._validation is not None:
                with worker.alone():
                    self._look_at_examples(path, history, result["steps"])
        self._reporter.event("end", run=str(path), **result)
        lines = announcements.ending(path, result, monitor=self._options["monitor"])
        self._reporter.say("\n".join(lines))

    def _look_at_examples(self, path: Path, history: Any, steps: int) -> None:
        """Writes evaluation.json, for the same weights as final.keras."""
        if history.ema_weights is not None:
            history.model.set_weights(history.ema_weights)
        found = examples.evaluate(history.model, self._validation, self._job.recipe, self._names[0])
        if found is not None:
            ownership.ensure(path)
            write_text(path / EVALUATION, as_json({**found, "steps": steps}))


def _described(job: Job, data: Any) -> str:
    arrays = tf.nest.flatten(data) if isinstance(data, (dict, tuple)) else []
    if arrays and all(isinstance(array, np.ndarray) for array in arrays):
        return f"{len(arrays[0]):,} examples ({job.source})"
    return f"data: {job.source}"


@contextlib.contextmanager
def _result_of_a_stop(folder: RunFolder) -> Iterator[None]:
    """Writes into result.json why a run ended early; removes the folder if it never began."""
    try:
        yield
    except DivergedError as error:
        _stop(folder, "diverged", str(error))
        raise
    except RunLockedError:
        raise  # Another process uses the folder.
    except KerasdistError as error:
        if isinstance(error, RunFailedError) or getattr(error, "during_run", False):
            _stop(folder, "failed", str(error))
        else:
            folder.discard()
        raise
    except Exception as error:
        _stop(folder, "failed", f"{type(error).__name__}: {error}")
        raise
    except (KeyboardInterrupt, Terminated) as error:
        _stop(folder, "interrupted", "SIGTERM" if isinstance(error, Terminated) else "Ctrl-C")
        raise


def _stop(folder: RunFolder, status: str, error: str) -> None:
    folder.stop(status, error)
    live.write(folder.path, status=status)


@contextlib.contextmanager
def _report_at_the_end(reporter: Reporter, path: Path) -> Iterator[None]:
    """Writes the report of a finished run. An error in the block only gives a warning."""
    live.write(path, status="finished")  # At once, in case the process is killed in the block.
    try:
        yield
    except KeyboardInterrupt:
        reporter.warn("interrupted: the report has no confusion matrix and no examples")
    except Exception as error:  # noqa: BLE001 - the run itself is finished
        reason = first_line(error)
        reporter.warn(f"the report has no confusion matrix and no examples: {reason}")
    if not live.write(path, status="finished"):
        reporter.warn(f"{path / REPORT} could not be written")
