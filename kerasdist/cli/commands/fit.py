"""`kerasdist fit`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kerasdist.cli.job import FIT_OPTIONS, Job, names_of
from kerasdist.cli.options import FitOptions
from kerasdist.devices import cluster, worker
from kerasdist.devices.placement import Placement, place
from kerasdist.errors import DivergedError, KerasdistError, RunFailedError
from kerasdist.evaluation import examples
from kerasdist.reports.live import write_report
from kerasdist.runs import catalog, ownership
from kerasdist.runs.atomic import as_json, write_text
from kerasdist.runs.file_names import EVALUATION, REPORT, RESULT
from kerasdist.runs.folder import RunFolder
from kerasdist.runs.lock import RunLockedError, is_locked
from kerasdist.training import api
from kerasdist.training.progress import announcements
from kerasdist.training.progress.reporter import Reporter, mode_of
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
    arguments = {name: run[name] for name in FIT_OPTIONS} | {
        "devices": names,
        "epochs": run["epochs"],
        "log_every": run["log_every"],
        "progress": reporter,
        "validation_data": job.build_data("validation") if job.recipe is not None else None,
        "augment": job.recipe.build_augment() if job.recipe is not None else None,
    }
    data = job.build_data("train")
    titles = names if placement is None else list(placement.titles)
    about = f"{job.name} on {', '.join(titles)}, {_described(job, data)}"
    if run["dry_run"]:
        arguments |= {"steps": 2, "validation_steps": 1, "log_every": 1}
        reporter.say(f"dry run: {about}")
        api.fit(job.build_model, data, **arguments)
        reporter.say("dry run: two steps and one evaluation passed; nothing was kept")
        reporter.event("dry_run", status="passed")
        return 0
    folder = _folder(job, run) if is_chief else None
    is_finished = folder is not None and _is_finished(job, folder.path)
    if placement is not None:
        (is_finished,) = placement.of_chief(is_finished)  # type: ignore[assignment]
    if is_finished:
        if folder is not None:
            reporter.say(
                f"run {folder.path} is finished; --no-resume starts a new one, more --epochs go on"
            )
            reporter.event("finished", run=str(folder.path))
        return 0
    arguments |= {name: run[name] for name in ("save_every", "keep", "monitor", "on_nan")}
    arguments["init_from"] = run["init_from"]
    arguments["summary_every"] = run["summary_every"] or None
    arguments |= {name: run[name] for name in ("profile", "log_placement")}
    if folder is None:
        api.fit(job.build_model, data, run_dir="the chief's", **arguments)
        return 0
    worker.report(run=str(folder.path))
    reporter.event("start", run=str(folder.path), name=job.name, dataset=job.source, devices=titles)
    with _result_of_a_stop(folder):
        history = api.fit(job.build_model, data, run_dir=folder, **arguments)
    result = json.loads((folder.path / RESULT).read_text())
    validation = arguments["validation_data"]
    with _report_at_the_end(reporter, folder.path):
        if validation is not None:
            with worker.alone():
                _look_at_examples(history, validation, job, names[0], folder.path, result["steps"])
    reporter.event("end", run=str(folder.path), **result)
    reporter.say("\n".join(announcements.ending(folder.path, result, monitor=run["monitor"])))
    return 0


def _is_finished(job: Job, path: Path) -> bool:
    return catalog.status(path) == "finished" and _same_run(job.config(), path)


def _folder(job: Job, run: dict[str, Any]) -> RunFolder:
    """The run's folder: named, or the newest that this command left unfinished, or a new one."""
    parent = Path("runs") / job.name
    if run["run_dir"]:
        return RunFolder(run["run_dir"], job.config(), job.source, resume=run["resume"])
    if run["resume"]:
        for path in catalog.newest_first(parent):
            if _same_run(job.config(), path) and not is_locked(path):
                if catalog.status(path) == "diverged":
                    break
                return RunFolder(path, job.config(), job.source, resume=True)
    return RunFolder.numbered(parent, job.config(), job.source)


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
    saved = catalog.read_config(path)
    if saved is None:
        return False
    ours = json.loads(as_json(config))
    for each in (saved, ours):
        each["options"] = {k: v for k, v in each.get("options", {}).items() if k not in _MAY_DIFFER}
        each.pop("kerasdist", None)
    return bool(saved == ours)


@contextlib.contextmanager
def _result_of_a_stop(folder: RunFolder) -> Iterator[None]:
    """Leaves a result.json that says why a run ended early, and nothing of one that never began."""
    try:
        yield
    except DivergedError as error:
        _stop(folder, "diverged", str(error))
        raise
    except RunLockedError:
        raise  # The folder is another process's.
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
    write_report(folder.path, status=status)


@contextlib.contextmanager
def _report_at_the_end(reporter: Reporter, path: Path) -> Iterator[None]:
    """Writes the report of a run that has finished, which nothing that fails here changes."""
    write_report(path, status="finished")  # At once: a kill may end what follows.
    try:
        yield
    except KeyboardInterrupt:
        reporter.warn("interrupted: the report has no confusion matrix and no examples")
    except Exception as error:  # noqa: BLE001 - the run is finished, whatever its examples do
        reason = (str(error).strip().splitlines() or [type(error).__name__])[0]
        reporter.warn(f"the report has no confusion matrix and no examples: {reason}")
    if not write_report(path, status="finished"):
        reporter.warn(f"{path / REPORT} could not be written")


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
