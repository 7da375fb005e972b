"""What a resumed run inherits: its seed and shards, and on other workers the checkpoint."""

from __future__ import annotations

import os
from pathlib import Path

from kerasdist.devices.placement import Placement
from kerasdist.devices.shard_counts import resolve_shards
from kerasdist.errors import KerasdistError
from kerasdist.runs.catalog import read_config
from kerasdist.runs.checkpoints import Checkpoint
from kerasdist.runs.checkpoints.contents import decoded, encoded
from kerasdist.runs.checkpoints.kept_identity import kept_identity
from kerasdist.runs.folder import RunFolder

# Where a run is written, as `fit` receives it; None for a run without a folder.
RunPath = RunFolder | str | os.PathLike[str] | None


def kept_shards(folder: Path) -> int | None:
    """The number of shards that a run started with. It stays the same on any number of devices."""
    return _kept(folder, "shards")


def kept_seed(folder: Path) -> int | None:
    """The seed that a run started with, even if it was stopped before its first checkpoint."""
    seed = _kept(folder, "seed")
    if seed is None:
        seed = (read_config(folder) or {}).get("seed")
    return seed if isinstance(seed, int) else None


def kept_stage(folder: Path) -> int:
    """The stage of the newest checkpoint: 0 is the first."""
    return _kept(folder, "stage") or 0


def _kept(folder: Path, name: str) -> int | None:
    value = kept_identity(folder).get(name)
    return value if isinstance(value, int) else None


def choose_seed(given: int | None, fresh: int, placement: Placement, run_dir: RunPath) -> int:
    """The seed that was given, or the one of the run to resume, or else the chief's `fresh` one."""
    if given is not None:
        return given
    own = fresh
    path = _path(run_dir)
    if path is not None and placement.is_chief:
        kept = kept_seed(path)
        own = own if kept is None else kept
    return placement.of_chief(own)[0]


def choose_shards(
    given: int | None, placement: Placement, deterministic: bool, run_dir: RunPath
) -> int:
    """The shards that were given, or those of the run to resume, or else the default number."""
    path, kept = _path(run_dir), 0
    if given is None and path is not None:
        own = kept_shards(path) if placement.is_chief else None
        (kept,) = placement.of_chief(own or 0)
    if not kept:
        return resolve_shards(given, placement.num_replicas, deterministic)
    try:
        return resolve_shards(kept, placement.num_replicas, deterministic)
    except KerasdistError as error:
        raise KerasdistError(f"{error} The run in {path} started with {kept} shards.") from None


def _path(run_dir: RunPath) -> Path | None:
    if run_dir is None:
        return None
    return Path(run_dir.path if isinstance(run_dir, RunFolder) else run_dir).expanduser()


def of_chief(saved: Checkpoint | None, placement: Placement) -> Checkpoint | None:
    """Sends the chief's checkpoint to all workers: only the chief can read the run's folder."""
    workers = placement.workers
    if workers is None:
        return saved
    known = None if saved is None else [saved.step, str(saved.path), encoded(saved.meta)]
    known, arrays = workers.arrays_of_chief(known, {} if saved is None else saved.arrays)
    if known is None or saved is not None:
        return saved
    step, path, meta = known
    return Checkpoint(step, Path(path), arrays, decoded(meta))
