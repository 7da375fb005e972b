"""Options that do not fit together, refused before TensorFlow is imported."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from kerasdist.devices import cluster
from kerasdist.devices.shard_counts import resolve_shards
from kerasdist.errors import KerasdistError


def check_shards(run: Mapping[str, Any]) -> None:
    """`--shards` with `--devices` and `--batch-size`, as far as the texts tell."""
    shards, count = run["shards"], _num_devices(run)
    if shards is None:
        return
    if count is not None:
        resolve_shards(shards, count, run["deterministic"])
    _check_batch(run, shards, f"`--shards {shards}`")


def _check_batch(run: Mapping[str, Any], shards: int, why: str) -> None:
    size = run.get("batch_size")
    if size is not None and size < shards:
        raise KerasdistError(
            f"Received `--batch-size {size}` and {why}, which cuts each batch into {shards} "
            "shards. Expected at least one example per shard. Use a larger batch, or fewer shards."
        )


def _num_devices(run: Mapping[str, Any]) -> int | None:
    """How many devices `--devices` means; None if only TensorFlow or the other workers know."""
    if "devices" not in run or run.get("soft_placement") or cluster.current() is not None:
        return None
    text = run["devices"].strip().lower()
    last = text.rpartition(":")[2]
    if "," in text:
        return text.count(",") + 1
    if text.isdigit():
        return int(text)
    if text.endswith("gpu") or text == "auto":
        return None
    return int(last) if "cpu:" in text and last.isdigit() else 1


def check_counts(run: Mapping[str, Any], *, shares_shards: bool) -> None:
    """`--counts` with `--shards` and `--batch-size`.

    With `shares_shards`, all numbers of devices cut a batch into the same number of shards.
    """
    counts = [int(count) for count in run["counts"].split(",")]
    shards = run["shards"]
    if shards is not None:
        for count in counts:
            resolve_shards(shards, count, run["deterministic"])
    if shares_shards:
        needed = shards or math.lcm(*counts, 4 if run["deterministic"] else 1)
        _check_batch(run, needed, f"`--counts {run['counts']}`")
