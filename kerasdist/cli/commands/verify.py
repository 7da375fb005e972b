"""`kerasdist verify`: checks that several devices compute the same as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import ArrayLike
from rich.console import Console
from rich.table import Table

from kerasdist.cli.fit_arguments import FitOptions
from kerasdist.cli.job import FIT_OPTIONS, Job
from kerasdist.devices import visible_gpus
from kerasdist.devices.names import logical_cpus_if_more
from kerasdist.phases.phase import phase
from kerasdist.phases.prose import say
from kerasdist.runs.atomic import as_json
from kerasdist.runs.trained_model import weights_sha256
from kerasdist.training import api

# Rounding in float32 explains differences up to this after a few steps, relative to the largest
# weight.
VERIFY_TOLERANCE = 1e-4


@dataclass(frozen=True)
class _Outcome:
    """What a training on a number of devices gave."""

    devices: int
    weights: list[np.ndarray]
    metrics: dict[str, float]
    digest: str


def verify(options: FitOptions) -> int:
    """`kerasdist verify`: trains a few steps on each number of devices, and compares."""
    run = options.run
    counts = [int(count) for count in run["counts"].split(",")]
    num_gpus = len(tf.config.list_physical_devices("GPU"))
    kind = "GPU" if num_gpus >= max(counts) else "CPU"
    visible_gpus.keep(range(max(counts)) if kind == "GPU" else [])
    if kind == "CPU":
        logical_cpus_if_more(max(counts))
    shards = run["shards"] or math.lcm(*counts, 4 if run["deterministic"] else 1)
    job = Job(options)
    data = job.build_data("train")
    outcomes = []
    with phase("verifying", len(counts), unit="number of devices") as verifying:
        for count in counts:
            names = [f"{kind}:{i}" for i in range(count)]
            with phase(f"on {count} {'device' if count == 1 else 'devices'}"):
                outcomes.append(_train(job, data, run, names, shards))
            verifying.advance()
            if not isinstance(data, (dict, tuple, tf.data.Dataset)):
                data = job.build_data("train")  # A provider may be at its end.
    rows = [_compare(outcomes[0], outcome, run["deterministic"]) for outcome in outcomes]
    agree = all(row["agrees"] for row in rows)
    if run["json"]:
        print(as_json({"agree": agree, "shards": shards, "steps": run["steps"], "rows": rows}))
    elif not run["quiet"]:
        _print_verified(job.name, run, shards, rows, kind)
    return 0 if agree else 1


def _train(job: Job, data: Any, run: dict[str, Any], names: list[str], shards: int) -> _Outcome:
    arguments = {name: run[name] for name in FIT_OPTIONS} | {"shards": shards}
    if job.recipe is not None:
        arguments["augment"] = job.recipe.build_augment()
    history = api.fit(job.build_model, data, devices=names, progress=False, **arguments)
    metrics = {name: values[-1] for name, values in history.history.items()}
    digest = weights_sha256(history.model)
    return _Outcome(len(names), history.model.get_weights(), metrics, digest)


def _compare(first: _Outcome, other: _Outcome, deterministic: bool) -> dict[str, Any]:
    weights = [a - b for a, b in zip(first.weights, other.weights, strict=True)]
    metrics = [np.subtract(value, other.metrics[name]) for name, value in first.metrics.items()]
    weights_gap, metrics_gap = _largest(weights), _largest(metrics)
    weights_allowed = VERIFY_TOLERANCE * _largest(first.weights)
    metrics_allowed = VERIFY_TOLERANCE * max(1.0, _largest(list(first.metrics.values())))
    close = weights_gap <= weights_allowed and metrics_gap <= metrics_allowed
    if deterministic:
        weights_allowed = metrics_allowed = 0.0
    return {
        "devices": other.devices,
        "weights_difference": weights_gap,
        "weights_allowed": weights_allowed,
        "metrics_difference": metrics_gap,
        "metrics_allowed": metrics_allowed,
        "weights_sha256": other.digest,
        "agrees": first.digest == other.digest if deterministic else close,
    }


def _largest(arrays: Sequence[ArrayLike]) -> float:
    """The largest absolute value; NaN if there is one, which then agrees with nothing."""
    return float(np.max([np.max(np.abs(array)) for array in arrays if np.size(array)]))


def _print_verified(
    name: str, run: dict[str, Any], shards: int, rows: list[dict[str, Any]], kind: str
) -> None:
    table = Table(title=f"{name}: {run['steps']} steps, {shards} shards, on {kind}s")
    columns = ["devices", "weights: largest difference", "metrics: largest difference"]
    if run["deterministic"]:
        columns.append("sha256 of the weights")
    else:
        columns[1:] = [f"{column} (allowed)" for column in columns[1:]]
    for column in (*columns, "agrees"):
        table.add_column(column)
    for row in rows:
        cells = [str(row["devices"])]
        for what in ("weights", "metrics"):
            allowed = "" if run["deterministic"] else f" ({row[f'{what}_allowed']:.3g})"
            cells.append(f"{row[f'{what}_difference']:.3g}{allowed}")
        if run["deterministic"]:
            cells.append(row["weights_sha256"][:16])
        table.add_row(*cells, "yes" if row["agrees"] else "NO")
    Console(markup=False, emoji=False).print(table)
    if not run["deterministic"]:
        say(
            f"allowed: {VERIFY_TOLERANCE:g} of the largest weight, or of the largest metric (at "
            "least of 1).\nRounding explains that much; --deterministic allows nothing."
        )
