"""`kerasdist verify`: N devices compute what one does, shown."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import tensorflow as tf
from rich.console import Console
from rich.table import Table

from kerasdist.cli.job import FIT_OPTIONS, Job
from kerasdist.cli.options import FitOptions
from kerasdist.devices.placement import logical_cpus_if_more
from kerasdist.errors import KerasdistError
from kerasdist.runs.atomic import as_json
from kerasdist.runs.trained_model import weights_sha256
from kerasdist.training import api

# Differences that float32 rounding explains after a few steps, relative to the largest weight.
VERIFY_TOLERANCE = 1e-4


def verify(options: FitOptions) -> int:
    """`kerasdist verify`: the recipe for a few steps on each number of devices, compared."""
    run = options.run
    counts = [int(count) for count in run["counts"].split(",")]
    num_gpus = len(tf.config.list_physical_devices("GPU"))
    kind = "GPU" if num_gpus >= max(counts) else "CPU"
    if kind == "CPU":
        logical_cpus_if_more(max(counts))
    shards = run["shards"] or math.lcm(*counts, 4 if run["deterministic"] else 1)
    job = Job(options)
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
        arguments = {name: run[name] for name in FIT_OPTIONS} | {"shards": shards}
        if job.recipe is not None:
            arguments["augment"] = job.recipe.build_augment()
        history = api.fit(job.build_model, data, devices=names, progress=False, **arguments)
        if not isinstance(data, (dict, tuple, tf.data.Dataset)):
            data = job.build_data("train")  # It may have been read to its end.
        metrics = {name: values[-1] for name, values in history.history.items()}
        weights = history.model.get_weights()
        outcomes.append((count, weights, metrics, weights_sha256(history.model)))
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
