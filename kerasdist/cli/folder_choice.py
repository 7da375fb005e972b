"""Chooses the folder of a `kerasdist fit`: a named, an unfinished or a new one."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kerasdist.cli.job import Job
from kerasdist.runs.atomic import as_json
from kerasdist.runs.catalog import CODE, newest_first, read_config, read_object, status
from kerasdist.runs.file_names import BEST, FINAL, RESULT
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
# So many settings are named that differ.
_MOST_NAMES = 4


def choose(job: Job, options: Mapping[str, Any]) -> RunFolder:
    """The folder of `--run-dir`, or the newest unfinished one of this command, or a new one."""
    parent = Path("runs") / job.name
    if options["run_dir"]:
        return RunFolder(options["run_dir"], _content(job), job.source, resume=options["resume"])
    if options["resume"]:
        for path in newest_first(parent):
            if _is_same_run(job, path) and not is_locked(path):
                if status(path) == "diverged":
                    break
                return RunFolder(path, _content(job), job.source, resume=True)
    return RunFolder.numbered(parent, _content(job), job.source)


def _content(job: Job) -> dict[str, Any]:
    """The config.json of a run that starts now."""
    code = job.code()
    return job.config() if code is None else {**job.config(), CODE: code}


def tell(
    job: Job, options: Mapping[str, Any], folder: RunFolder | None, warn: Callable[[str], None]
) -> None:
    """Warns if the newest run of the same name is unfinished, and a new one begins.

    Somebody who gives the same command again after a kill expects that the run goes on.
    """
    if folder is not None and folder.is_new and options["resume"] and not options["run_dir"]:
        text = _left_behind(job, folder)
        if text is not None:
            warn(text)


def _left_behind(job: Job, folder: RunFolder) -> str | None:
    others = [path for path in newest_first(Path("runs") / job.name) if path != folder.path]
    if not others or _is_same_run(job, others[0]) or is_locked(others[0]):
        return None
    config = read_config(others[0])
    if status(others[0]) in ("finished", "diverged") or config is None:
        return None
    saved, wanted = _comparable(config), _comparable(job.config())
    flat = [{**each.get("settings", {}), **each["options"]} for each in (saved, wanted)]
    names = [name for name in {**flat[0], **flat[1]} if flat[0].get(name) != flat[1].get(name)]
    told = ", ".join(names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    place = shlex.quote(str(others[0]))
    weights = f" `--init-from {place}` begins with its weights." if _has_model(others[0]) else ""
    return (
        f"{others[0]} is unfinished, but its settings or data were others ({told}{more}), so this "
        f"is a new run.{weights}"
    )


def _has_model(run: Path) -> bool:
    return any((run / name).is_file() for name in (BEST, FINAL))


def is_finished(job: Job, path: Path) -> bool:
    """Whether a folder has a finished run of the same command."""
    return status(path) == "finished" and _is_same_run(job, path)


def is_edited(job: Job, path: Path) -> bool:
    """Whether the code was changed since a run was trained. Older runs do not know."""
    config, code = read_config(path) or {}, job.code()
    return code is not None and config.get(CODE, code) != code


def about_finished(job: Job, options: Mapping[str, Any], path: Path) -> str:
    """Says that there is nothing left to train, and what to do instead."""
    again = "another --run-dir" if options["run_dir"] else "--no-resume"
    if is_edited(job, path):
        what = "the code" if job.recipe is None else "the code of the recipe"
        return (
            f"run {path} is finished, but {what} was changed since: {again} trains it in a new run"
        )
    stopped = read_object(path / RESULT).get("stopped")
    if stopped:
        return f"run {path} is finished. It stopped early: {stopped}. {again} starts a new run."
    more = f"`--run-dir {path}` with more --epochs continues this one"
    return f"run {path} is finished; {again} starts a new run, {more}"


def _is_same_run(job: Job, path: Path) -> bool:
    """Whether the same command started the run in a folder."""
    config = read_config(path)
    if config is None:
        return False
    saved, wanted = _comparable(config), _comparable(job.config())
    _forget_drawn_files(saved.get("settings", {}), wanted.get("settings", {}))
    return bool(saved == wanted)


def _comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json without what may differ between two starts of a run."""
    each: dict[str, Any] = json.loads(as_json(config))
    each["options"] = {k: v for k, v in each.get("options", {}).items() if k not in _MAY_DIFFER}
    # Older runs do not have these.
    each["options"].setdefault("patience", None)
    each["options"].setdefault("sync_batch_norm", False)
    each["options"].setdefault("init_map", None)
    each["options"].setdefault("init_averages", False)
    # Only "on" makes another run. The default was "off" before it was "auto".
    each["options"]["jit"] = each["options"].get("jit") == "on"
    each.pop("kerasdist", None)
    each.pop(CODE, None)
    return each


def _forget_drawn_files(saved: Mapping[str, Any], wanted: dict[str, Any]) -> None:
    """Removes which files are for validation from settings, if an older run did not keep that."""
    if "split" not in saved and "limits" in (wanted.get("split") or ()):
        del wanted["split"]
    was, now = saved.get("schema"), wanted.get("schema")
    if isinstance(was, dict) and isinstance(now, dict) and was.get("split") is None:
        now["split"] = None
