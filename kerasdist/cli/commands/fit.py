"""`kerasdist fit`."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.cli.job import Job, names_of
from kerasdist.cli.options import FitOptions
from kerasdist.devices import cluster, worker
from kerasdist.devices.placement import Placement, place
from kerasdist.errors import DivergedError, KerasdistError, RunFailedError
from kerasdist.evaluation import examples
from kerasdist.reports import live as reports
from kerasdist.runs import folder as runs
from kerasdist.runs import ownership
from kerasdist.runs.atomic import as_json, write_text
from kerasdist.runs.lock import RunLock, RunLockedError
from kerasdist.runs.reading import EVALUATION
from kerasdist.training.options import (
    DataSource,
    ModelSource,
    RunOptions,
    StepOptions,
    TrainingOptions,
    WatchOptions,
)
from kerasdist.training.plan import Plan
from kerasdist.training.progress import announcements
from kerasdist.training.progress.reporter import Reporter, mode_of
from kerasdist.training.session import train
from kerasdist.training.signals import Terminated


def fit(options: FitOptions) -> int:
    """`kerasdist fit`."""
    names = names_of(options.run)
    placement = None if cluster.current() is None else place(names)
    with contextlib.nullcontext() if placement is None else placement.together():
        return _fit(options, names, placement)


def _fit(options: FitOptions, names: list[str], placement: Placement | None) -> int:
    run = options.run
    is_chief = placement is None or placement.is_chief
    reporter = Reporter(mode_of("json" if run["json"] else False if run["quiet"] else "auto"))
    if not is_chief:
        reporter = Reporter("silent")
    job = Job(options)
    data = _data(job, run)
    titles = names if placement is None else list(placement.titles)
    if run["dry_run"]:
        reporter.say(f"dry run: {job.name} on {', '.join(titles)}, {_described(job, data.data)}")
        train(_trial(job, run, data, reporter), place(names))
        reporter.say("dry run: two steps and one evaluation passed; nothing was kept")
        reporter.event("dry_run", status="passed")
        return 0
    folder = _folder(job, run) if is_chief else None
    is_finished = folder is not None and _is_finished(job, folder.path)
    if placement is not None:
        is_finished = bool(placement.of_chief(is_finished)[0])
    if is_finished:
        if folder is not None:
            reporter.say(
                f"run {folder.path} is finished; --no-resume starts a new one, more --epochs go on"
            )
            reporter.event("finished", run=str(folder.path))
        return 0
    training = _training(job, run, data, reporter, folder)
    if folder is None:
        train(training, place(names))
        return 0
    worker.report(run=str(folder.path))
    reporter.event("start", run=str(folder.path), name=job.name, dataset=job.source, devices=titles)
    with _result_of_a_stop(folder):
        history = train(training, place(names))
    result = json.loads((folder.path / runs.RESULT).read_text())
    validation = data.validation_data
    with _report_at_the_end(reporter, folder.path):
        if validation is not None:
            with worker.alone():
                _look_at_examples(history, validation, job, names[0], folder.path, result["steps"])
    reporter.event("end", run=str(folder.path), **result)
    reporter.say("\n".join(announcements.ending(folder.path, result, monitor=run["monitor"])))
    return 0


def _data(job: Job, run: dict[str, Any]) -> DataSource:
    validation, augment = None, None
    if job.recipe is not None:
        validation, augment = job.build_data("validation"), job.recipe.build_augment()
    return DataSource.checked(
        job.build_data("train"),
        batch_size=run["batch_size"],
        allow_nan=run["allow_nan"],
        augment=augment,
        validation_data=validation,
    )


def _training(
    job: Job,
    run: dict[str, Any],
    data: DataSource,
    reporter: Reporter,
    folder: runs.RunFolder | None,
) -> TrainingOptions:
    """The options of a run. Workers without a folder know only that the chief has one."""
    path = Path() if folder is None else folder.path
    keeping = {name: run[name] for name in ("resume", "save_every", "keep", "monitor")}
    watching = {name: run[name] for name in ("log_every", "profile", "log_placement")}
    return TrainingOptions(
        source=ModelSource.checked(job.build_model, run["precision"], run["init_from"]),
        data=data,
        plan=Plan.checked(epochs=run["epochs"], steps=run["steps"], steps_per_epoch=None),
        step=_step(run, on_nan=run["on_nan"]),
        keeping=RunOptions.checked(path, folder=folder, **keeping),
        watching=WatchOptions.checked(
            reporter,
            run_dir=path,
            summary_every=run["summary_every"] or None,
            tells_end=False,  # There is more to tell, after a look at examples.
            **watching,
        ),
    )


def _trial(job: Job, run: dict[str, Any], data: DataSource, reporter: Reporter) -> TrainingOptions:
    """Two steps and one batch of validation, of which nothing is kept."""
    return TrainingOptions(
        source=ModelSource.checked(job.build_model, run["precision"], None),
        data=dataclasses.replace(data, validation_steps=1),
        plan=Plan.checked(epochs=run["epochs"], steps=2, steps_per_epoch=None),
        step=_step(run),
        keeping=RunOptions.checked(),
        watching=WatchOptions.checked(reporter, run_dir=None, log_every=1),
    )


def _step(run: dict[str, Any], **options: Any) -> StepOptions:
    names = ("shards", "deterministic", "jit", "clip_norm", "ema", "seed")
    return StepOptions.checked(**{name: run[name] for name in names}, **options)


def _is_finished(job: Job, path: Path) -> bool:
    return runs.status(path) == "finished" and _same_run(job.config(), path)


def _folder(job: Job, run: dict[str, Any]) -> runs.RunFolder:
    """The run's folder: named, or the newest that this command left unfinished, or a new one."""
    parent = Path("runs") / job.name
    if run["run_dir"]:
        return runs.RunFolder(run["run_dir"], job.config(), job.source, resume=run["resume"])
    if run["resume"]:
        for path in runs.newest_first(parent):
            if _same_run(job.config(), path) and not _is_locked(path):
                if runs.status(path) == "diverged":
                    break
                return runs.RunFolder(path, job.config(), job.source, resume=True)
    return runs.RunFolder.numbered(parent, job.config(), job.source)


def _is_locked(path: Path) -> bool:
    try:
        with RunLock(path):
            return False
    except RunLockedError:
        return True


# Options that may differ between two starts of one run.
_MAY_DIFFER = (
    "devices",
    "allow_nan",
    "log_every",
    "summary_every",
    "profile",
    "log_placement",
    "run_dir",
    "resume",
    "keep",
    "save_every",
    "soft_placement",
    "memory_growth",
    "memory_limit",
)


def _same_run(config: dict[str, Any], path: Path) -> bool:
    """Whether a run was started by the same command."""
    saved = runs.read_config(path)
    if saved is None:
        return False
    ours = json.loads(as_json(config))
    for each in (saved, ours):
        each["options"] = {k: v for k, v in each.get("options", {}).items() if k not in _MAY_DIFFER}
        each.pop("kerasdist", None)
    return bool(saved == ours)


@contextlib.contextmanager
def _result_of_a_stop(folder: runs.RunFolder) -> Iterator[None]:
    """Leaves a result.json that says why a run ended early, and nothing of one that never began."""
    try:
        yield
    except DivergedError as error:
        _stop(folder, "diverged", str(error))
        raise
    except RunLockedError:
        raise  # The folder is another process's.
    except RunFailedError as error:
        _stop(folder, "failed", str(error))
        raise
    except KerasdistError:
        folder.discard()
        raise
    except Exception as error:
        _stop(folder, "failed", f"{type(error).__name__}: {error}")
        raise
    except (KeyboardInterrupt, Terminated) as error:
        _stop(folder, "interrupted", "SIGTERM" if isinstance(error, Terminated) else "Ctrl-C")
        raise


def _stop(folder: runs.RunFolder, status: str, error: str) -> None:
    folder.stop(status, error)
    reports.write(folder.path, status=status)


@contextlib.contextmanager
def _report_at_the_end(reporter: Reporter, path: Path) -> Iterator[None]:
    """Writes the report of a run that has finished, which nothing that fails here changes."""
    reports.write(path, status="finished")  # At once: a kill may end what follows.
    try:
        yield
    except KeyboardInterrupt:
        reporter.warn("interrupted: the report has no confusion matrix and no examples")
    except Exception as error:  # noqa: BLE001 - the run is finished, whatever its examples do
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        reporter.warn(f"the report has no confusion matrix and no examples: {reason}")
    if not reports.write(path, status="finished"):
        reporter.warn(f"{path / runs.REPORT} could not be written")


def _look_at_examples(
    history: Any, data: Any, job: Job, device: str, path: Path, steps: int
) -> None:
    """Writes evaluation.json, for the weights that final.keras has."""
    if history.ema_weights is not None:
        history.model.set_weights(history.ema_weights)
    found = examples.evaluate(history.model, data, job.recipe, device)
    if found is not None:
        ownership.ensure(path)
        write_text(path / EVALUATION, as_json({**found, "steps": steps}))


def _described(job: Job, data: Any) -> str:
    arrays = tf.nest.flatten(data) if isinstance(data, (dict, tuple)) else []
    if arrays and all(isinstance(array, np.ndarray) for array in arrays):
        return f"{len(arrays[0]):,} examples ({job.source})"
    return f"data: {job.source}"
