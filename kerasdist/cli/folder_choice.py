"""Chooses the folder of a `kerasdist fit`: a named, an unfinished or a new one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerasdist.cli.job import Job
from kerasdist.runs.atomic import as_json
from kerasdist.runs.catalog import newest_first, read_config, status
from kerasdist.runs.folder import RunFolder
from kerasdist.runs.lock import is_locked

# Two starts with different values of these options are still the same run.
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
    "keep_best",
    "save_every",
    "soft_placement",
    "memory_growth",
    "memory_limit",
)


def choose(job: Job, options: Mapping[str, Any]) -> RunFolder:
    """The folder of `--run-dir`, or the newest unfinished one of this command, or a new one."""
    parent = Path("runs") / job.name
    if options["run_dir"]:
        return RunFolder(options["run_dir"], job.config(), job.source, resume=options["resume"])
    if options["resume"]:
        for path in newest_first(parent):
            if _is_same_run(job, path) and not is_locked(path):
                if status(path) == "diverged":
                    break
                return RunFolder(path, job.config(), job.source, resume=True)
    return RunFolder.numbered(parent, job.config(), job.source)


def is_finished(job: Job, path: Path) -> bool:
    """Whether a folder has a finished run of the same command."""
    return status(path) == "finished" and _is_same_run(job, path)


def _is_same_run(job: Job, path: Path) -> bool:
    """Whether the same command started the run in a folder."""
    saved = read_config(path)
    if saved is None:
        return False
    wanted = json.loads(as_json(job.config()))
    for each in (saved, wanted):
        each["options"] = {k: v for k, v in each.get("options", {}).items() if k not in _MAY_DIFFER}
        # Older runs do not have these.
        each["options"].setdefault("patience", None)
        each["options"].setdefault("sync_batch_norm", False)
        each["options"].setdefault("init_map", None)
        each["options"].setdefault("init_averages", False)
        # Only "on" makes another run. The default was "off" before it was "auto".
        each["options"]["jit"] = each["options"].get("jit") == "on"
        each.pop("kerasdist", None)
    _forget_drawn_files(saved.get("settings", {}), wanted.get("settings", {}))
    return bool(saved == wanted)


def _forget_drawn_files(saved: Mapping[str, Any], wanted: dict[str, Any]) -> None:
    """Removes which files are for validation from settings, if an older run did not keep that."""
    if "split" not in saved and "limits" in (wanted.get("split") or ()):
        del wanted["split"]
    was, now = saved.get("schema"), wanted.get("schema")
    if isinstance(was, dict) and isinstance(now, dict) and was.get("split") is None:
        now["split"] = None
