"""What the commands do, once their options are parsed."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from kerasdist import __version__, runs, training
from kerasdist.devices import list_devices, logical_cpus_if_more, resolve_names
from kerasdist.errors import KerasdistError
from kerasdist.options import FitOptions
from kerasdist.recipes import Recipe, load_recipe
from kerasdist.reporting import Reporter

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
    job = _Job(options)
    arguments = {name: run[name] for name in _FIT_OPTIONS} | {
        "devices": _names(run),
        "epochs": run["epochs"],
        "log_every": run["log_every"],
        "progress": reporter,
    }
    if run["dry_run"]:
        arguments |= {"steps": 2, "validation_steps": 1, "log_every": 1}
        training.fit(job.build_model, job.train, validation_data=job.validation, **arguments)
        reporter.say("dry run: two steps and one evaluation passed; nothing was kept")
        reporter.event("dry_run", status="passed")
        return 0
    path = Path(run["run_dir"]) if run["run_dir"] else runs.next_run_folder(f"runs/{job.name}")
    arguments["run_dir"] = folder = runs.RunFolder(path, job.config(), dataset=job.source)
    names = arguments["devices"]
    reporter.say(f"run {path}: {job.name} ({job.source} data) on {', '.join(names)}")
    reporter.event("start", run=str(path), recipe=job.name, dataset=job.source, devices=names)
    training.fit(job.build_model, job.train, validation_data=job.validation, **arguments)
    result = json.loads((folder.path / runs.RESULT).read_text())
    reporter.event("end", **result)
    numbers = [f"{k} = {v:.4g}" for k, v in result.items() if isinstance(v, float)]
    reporter.say(f"finished after {result['steps']} steps: {', '.join(numbers)}")
    if options.recipe is not None:
        reporter.say(f"the model is {folder.path / runs.FINAL}; kerasdist evaluate {folder.path}")
    return 0


class _Job:
    """A model and its data, from a recipe or from two classes."""

    def __init__(self, options: FitOptions):
        self._options = options
        self.recipe: Recipe | None = None
        self.validation: Any = None
        if options.recipe is not None:
            self.recipe = load_recipe(options.recipe, **options.settings)
            self.name = self.recipe.name
            self.source = self.recipe.source()
            self.train = self.recipe.build_data("train")
            self.validation = self.recipe.build_data("validation")
        elif options.model is not None and options.data is not None:
            self.name, self.source = options.model.name, "provider"
            self.train = _construct(options.data, options.data_arguments)

    def build_model(self) -> Any:
        if self.recipe is not None:
            return self.recipe.build_model()
        return _construct(self._options.model, self._options.model_arguments)

    def config(self) -> dict[str, Any]:
        """Everything needed to run it again."""
        options = self._options
        config: dict[str, Any] = {"kerasdist": __version__}
        if self.recipe is not None:
            bundled = options.recipe == self.recipe.name
            config["recipe"] = self.recipe.name if bundled else str(self.recipe.path)
            config["settings"] = options.settings
        else:
            config["model"] = f"{options.model.path}:{options.model.name}"
            config["model_arguments"] = options.model_arguments
            config["data"] = f"{options.data.path}:{options.data.name}"
            config["data_arguments"] = options.data_arguments
        config["options"] = {
            k: v for k, v in options.run.items() if k not in ("json", "quiet", "verbose", "debug")
        }
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


def evaluate(run: str, options: dict[str, Any]) -> int:
    """`kerasdist evaluate`."""
    folder = Path(run)
    if not (folder / runs.CONFIG).is_file():
        raise KerasdistError(
            f"Received the run {run!r}, which has no {runs.CONFIG}. Expected a run's folder. Name "
            "one, for example runs/cifar10/0001."
        )
    if not (folder / runs.FINAL).is_file():
        raise KerasdistError(
            f"Received the run {run!r}, which has no {runs.FINAL}: it did not finish. Expected a "
            "finished run. Train it to its end."
        )
    recipe = load_recipe(folder / runs.CONFIG)
    data = recipe.build_data(options["split"])
    results = training.evaluate(
        _restored(recipe, data, folder / runs.FINAL),
        data,
        batch_size=options["batch_size"],
        devices=_names(options),
    )
    if options["json"]:
        print(json.dumps(results))
    elif not options["quiet"]:
        print(", ".join(f"{name} = {value:.4f}" for name, value in results.items()))
    return 0


def _restored(recipe: Recipe, data: Any, weights: Path) -> Any:
    """The recipe's model, built by its own code, with arrays read from a file."""
    model = recipe.build_model()
    training.prepare(model, data)
    model.load_weights(weights)
    return model


def devices(options: dict[str, Any]) -> int:
    """`kerasdist devices`."""
    found = list_devices()
    if options["json"]:
        print(json.dumps([vars(device) for device in found]))
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
    counts = _counts(run["counts"])
    num_gpus = len(tf.config.list_physical_devices("GPU"))
    kind = "GPU" if num_gpus >= max(counts) else "CPU"
    if kind == "CPU":
        logical_cpus_if_more(max(counts))
    shards = run["shards"] or math.lcm(*counts, 4 if run["deterministic"] else 1)
    job = _Job(options)
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
        history = training.fit(
            job.build_model, job.train, devices=names, progress=False, **arguments
        )
        metrics = {name: values[-1] for name, values in history.history.items()}
        weights = history.model.get_weights()
        outcomes.append((count, weights, metrics, runs.weights_sha256(history.model)))
    rows = [_compare(outcomes[0], outcome, run["deterministic"]) for outcome in outcomes]
    agree = all(row["agrees"] for row in rows)
    if run["json"]:
        print(json.dumps({"agree": agree, "shards": shards, "steps": run["steps"], "rows": rows}))
    elif not run["quiet"]:
        _print_verified(job.name, run, shards, rows, kind)
    return 0 if agree else 1


def _counts(text: str) -> list[int]:
    parts = text.split(",")
    if not all(part.strip().isdigit() and int(part) > 0 for part in parts):
        raise KerasdistError(
            f"Received `--counts {text}`. Expected numbers of devices with commas between. Give for "
            "example `--counts 1,2,4`."
        )
    return [int(part) for part in parts]


def _compare(first: tuple, other: tuple, deterministic: bool) -> dict[str, Any]:
    _, weights, metrics, digest = first
    largest = max(float(np.max(np.abs(w))) for w in weights)
    gap = max(
        float(np.max(np.abs(a - b))) for a, b in zip(weights, other[1], strict=True) if a.size
    )
    metric_gap = max(abs(value - other[2][name]) for name, value in metrics.items())
    close = gap <= VERIFY_TOLERANCE * largest and metric_gap <= VERIFY_TOLERANCE * max(
        1.0, *(abs(v) for v in metrics.values())
    )
    return {
        "devices": other[0],
        "weights_difference": gap,
        "metrics_difference": metric_gap,
        "weights_sha256": other[3],
        "agrees": digest == other[3] if deterministic else close,
    }


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
