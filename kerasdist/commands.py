"""What the commands do, once their options are parsed."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from kerasdist import __version__, runs, training
from kerasdist.devices import list_devices, logical_cpus_if_more, resolve_names
from kerasdist.errors import DivergedError, KerasdistError
from kerasdist.interrupts import Terminated
from kerasdist.locks import RunLock, RunLockedError
from kerasdist.options import OUTPUT_OPTIONS, FitOptions, parse_fit
from kerasdist.recipes import Recipe, bundled, load_recipe
from kerasdist.reporting import Reporter, as_json, as_text

# Said here and not at the first use: TensorFlow's messages about it are still held back.
tf.config.list_physical_devices()

_FIT_OPTIONS = (
    "steps",
    "batch_size",
    "shards",
    "deterministic",
    "precision",
    "clip_norm",
    "ema",
    "seed",
)
# Differences that float32 rounding explains after a few steps, relative to the largest weight.
VERIFY_TOLERANCE = 1e-4


def fit(options: FitOptions) -> int:
    """`kerasdist fit`."""
    run = options.run
    reporter = Reporter("json" if run["json"] else "silent" if run["quiet"] else "lines")
    names = _names(run)
    job = _Job(options)
    arguments = {name: run[name] for name in _FIT_OPTIONS} | {
        "devices": names,
        "epochs": run["epochs"],
        "log_every": run["log_every"],
        "progress": reporter,
        "validation_data": job.build_data("validation") if job.recipe is not None else None,
        "augment": job.recipe.build_augment() if job.recipe is not None else None,
    }
    data = job.build_data("train")
    about = f"{job.name} on {', '.join(names)}, {_described(job, data)}"
    if run["dry_run"]:
        arguments |= {"steps": 2, "validation_steps": 1, "log_every": 1}
        reporter.say(f"dry run: {about}")
        training.fit(job.build_model, data, **arguments)
        reporter.say("dry run: two steps and one evaluation passed; nothing was kept")
        reporter.event("dry_run", status="passed")
        return 0
    folder = _folder(job, run)
    if runs.status(folder.path) == "finished" and _same_run(job.config(), folder.path):
        reporter.say(
            f"run {folder.path} is finished; --no-resume starts a new one, more --epochs go on"
        )
        reporter.event("finished", run=str(folder.path))
        return 0
    arguments |= {name: run[name] for name in ("save_every", "keep", "monitor", "on_nan")}
    arguments["init_from"] = run["init_from"]
    reporter.say(f"run {folder.path}: {about}")
    reporter.event("start", run=str(folder.path), name=job.name, dataset=job.source, devices=names)
    with _result_of_a_stop(folder):
        training.fit(job.build_model, data, run_dir=folder, **arguments)
    result = json.loads((folder.path / runs.RESULT).read_text())
    reporter.event("end", run=str(folder.path), **result)
    _say_end(reporter, folder, result)
    return 0


def _folder(job: _Job, run: dict[str, Any]) -> runs.RunFolder:
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
_MAY_DIFFER = ("devices", "log_every", "run_dir", "resume", "keep", "save_every", "soft_placement")


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
        folder.stop("diverged", str(error))
        raise
    except KerasdistError as error:
        if getattr(error, "during_run", False):
            folder.stop("failed", str(error))
        else:
            folder.discard()
        raise
    except Exception as error:
        folder.stop("failed", f"{type(error).__name__}: {error}")
        raise
    except (KeyboardInterrupt, Terminated) as error:
        folder.stop("interrupted", "SIGTERM" if isinstance(error, Terminated) else "Ctrl-C")
        raise


def _described(job: _Job, data: Any) -> str:
    arrays = tf.nest.flatten(data) if isinstance(data, (dict, tuple)) else []
    if arrays and all(isinstance(array, np.ndarray) for array in arrays):
        return f"{len(arrays[0]):,} examples ({job.source})"
    return f"data: {job.source}"


def _say_end(reporter: Reporter, folder: runs.RunFolder, result: dict[str, Any]) -> None:
    rate = result["examples_per_second"]
    speed = f" ({rate:.1f} examples/sec)" if rate is not None else ""
    plan = f"{result['steps']:,} steps, {result['examples_seen']:,} examples{speed}"
    metrics = {k: v for k, v in result.items() if isinstance(v, float) and v is not rate}
    reporter.say(f"finished after {plan}: {as_text(metrics)}")
    final = folder.path / runs.FINAL
    if result["saved"] == "weights":
        reporter.say(
            f"{final} holds the weights only, for `load_weights`: Keras cannot describe the class "
            "of the model. Give it a `get_config` that returns its constructor's arguments."
        )
    else:
        reporter.say(f"the trained model is {final}")
    reporter.say(f"next: kerasdist evaluate {folder.path}")


class _Job:
    """A model and its data, from a recipe or from two classes."""

    def __init__(self, options: FitOptions):
        self._options = options
        self.recipe: Recipe | None = None
        if options.recipe is not None:
            self.recipe = load_recipe(options.recipe, **options.settings)
            self.name = self.recipe.name
            self.source = self.recipe.source()
        elif options.model is not None:
            self.name, self.source = options.model.name, "provider"

    def build_model(self) -> Any:
        if self.recipe is not None:
            return self.recipe.build_model()
        return _construct(self._options.model, self._options.model_arguments)

    def build_data(self, split: str) -> Any:
        if self.recipe is not None:
            return self.recipe.build_data(split)
        if split != "train":
            raise KerasdistError(
                f"Received the split {split!r} for {self.name!r}, which was trained on a provider "
                "and has no such data. Expected the run of a recipe. Use `--split train` to read "
                "the provider again."
            )
        return _construct(self._options.data, self._options.data_arguments)

    def config(self) -> dict[str, Any]:
        """Everything needed to run it again."""
        options = self._options
        config: dict[str, Any] = {"kerasdist": __version__}
        if self.recipe is not None:
            is_bundled = bundled().get(self.name) == self.recipe.path
            config["recipe"] = self.name if is_bundled else str(self.recipe.path)
            config["settings"] = options.settings
        else:
            config["model"] = str(options.model)
            config["model_arguments"] = options.model_arguments
            config["data"] = str(options.data)
            config["data_arguments"] = options.data_arguments
        left_out = {*OUTPUT_OPTIONS, "resume"}  # They say how to start, not what to train.
        config["options"] = {k: v for k, v in options.run.items() if k not in left_out}
        return config


def _construct(source: Any, arguments: dict[str, Any]) -> Any:
    kind = source.load()
    try:
        return kind(**arguments)
    except TypeError as error:
        raise KerasdistError(
            f"Received {arguments} for `{source.name}`, which refused them: {error}. Expected its "
            "constructor's arguments. `--help` lists them."
        ) from error


def _names(run: dict[str, Any]) -> list[str]:
    return list(resolve_names(run["devices"], soft=run["soft_placement"]))


def evaluate(run: Path, options: dict[str, Any]) -> int:
    """`kerasdist evaluate`."""
    names = _names(options)  # Before a model starts TensorFlow, which fixes the logical CPUs.
    data = _Job(parse_fit([str(run)])).build_data(options["split"])
    results = training.evaluate(
        run,
        data,
        batch_size=options["batch_size"],
        steps=options["steps"],
        devices=names,
    )
    if options["json"]:
        print(as_json(results))
    elif not options["quiet"]:
        print(as_text(results))
    return 0


def devices(options: dict[str, Any]) -> int:
    """`kerasdist devices`."""
    found = list_devices()
    if options["json"]:
        for device in found:
            print(as_json(vars(device)))
    if options["json"] or options["quiet"]:
        return 0
    table = Table()
    for column in ("device", "description", 'taken by "auto"'):
        table.add_column(column)
    for device in found:
        table.add_row(device.name, device.description, "yes" if device.used_by_auto else "")
    Console().print(table)
    return 0


def verify(options: FitOptions) -> int:
    """`kerasdist verify`: the recipe for a few steps on each number of devices, compared."""
    run = options.run
    counts = [int(count) for count in run["counts"].split(",")]
    num_gpus = len(tf.config.list_physical_devices("GPU"))
    kind = "GPU" if num_gpus >= max(counts) else "CPU"
    if kind == "CPU":
        logical_cpus_if_more(max(counts))
    shards = run["shards"] or math.lcm(*counts, 4 if run["deterministic"] else 1)
    job = _Job(options)
    data = job.build_data("train")
    batch_size = run["batch_size"]
    if batch_size is not None and batch_size < shards:
        raise KerasdistError(
            f"Received `--batch-size {batch_size}` and `--counts {run['counts']}`, which need "
            f"{shards} shards. Expected at least one example a shard. Use a larger batch."
        )
    outcomes = []
    for count in counts:
        names = [f"{kind}:{i}" for i in range(count)]
        arguments = {name: run[name] for name in _FIT_OPTIONS} | {"shards": shards}
        if job.recipe is not None:
            arguments["augment"] = job.recipe.build_augment()
        history = training.fit(job.build_model, data, devices=names, progress=False, **arguments)
        if not isinstance(data, (dict, tuple, tf.data.Dataset)):
            data = job.build_data("train")  # It may have been read to its end.
        metrics = {name: values[-1] for name, values in history.history.items()}
        weights = history.model.get_weights()
        outcomes.append((count, weights, metrics, runs.weights_sha256(history.model)))
    rows = [_compare(outcomes[0], outcome, run["deterministic"]) for outcome in outcomes]
    agree = all(row["agrees"] for row in rows)
    if run["json"]:
        print(as_json({"agree": agree, "shards": shards, "steps": run["steps"], "rows": rows}))
    elif not run["quiet"]:
        _print_verified(job.name, run, shards, rows, kind)
    return 0 if agree else 1


def _compare(first: tuple, other: tuple, deterministic: bool) -> dict[str, Any]:
    _, weights, metrics, digest = first
    weights_gap = _largest([a - b for a, b in zip(weights, other[1], strict=True)])
    metrics_gap = _largest([np.subtract(value, other[2][name]) for name, value in metrics.items()])
    close = weights_gap <= VERIFY_TOLERANCE * _largest(weights)
    close &= metrics_gap <= VERIFY_TOLERANCE * max(1.0, _largest(list(metrics.values())))
    return {
        "devices": other[0],
        "weights_difference": weights_gap,
        "metrics_difference": metrics_gap,
        "weights_sha256": other[3],
        "agrees": bool(digest == other[3] if deterministic else close),
    }


def _largest(arrays: list) -> float:
    """NaN if there is one: it is close to nothing."""
    return float(np.max([np.max(np.abs(array)) for array in arrays if np.size(array)]))


def _print_verified(name: str, run: dict, shards: int, rows: list[dict], kind: str) -> None:
    table = Table(title=f"{name}: {run['steps']} steps, {shards} shards, on {kind}s")
    columns = ["devices", "weights: largest difference", "metrics: largest difference"]
    if run["deterministic"]:
        columns.append("sha256 of the weights")
    for column in (*columns, "agrees"):
        table.add_column(column)
    for row in rows:
        cells = [
            str(row["devices"]),
            f"{row['weights_difference']:.3g}",
            f"{row['metrics_difference']:.3g}",
        ]
        if run["deterministic"]:
            cells.append(row["weights_sha256"][:16])
        table.add_row(*cells, "yes" if row["agrees"] else "NO")
    Console().print(table)
