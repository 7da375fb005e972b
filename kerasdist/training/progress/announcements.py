"""The lines printed when a run starts and when it ends."""

from __future__ import annotations

import math
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kerasdist.recipes.own_data.kinds import TABLES
from kerasdist.runs.catalog import read_config, read_object
from kerasdist.runs.file_names import BEST, BEST_MODELS, EVALUATION, FINAL, REPORT
from kerasdist.runs.metrics_log import EPOCH, best_epoch, of_kind, read
from kerasdist.runs.results import kept_models
from kerasdist.runs.results.guessing import no_better
from kerasdist.training.progress.bar import rate_text
from kerasdist.training.progress.reporter import as_text

_MOST_DEVICES = 4
# Of the titles of `beginning`. What is said before it lines up with it.
WIDTH = len("precision")


def beginning(
    run: Path,
    *,
    model: Any,
    devices: Sequence[str],
    stream: Any,
    validation: Any = None,
    source: str | None = None,
    least_width: int = 0,
) -> list[str]:
    """The lines for a run that starts. `stream` and `validation` are streams of data.

    Their titles take at least `least_width` columns.
    """
    counts = [_count(each) for each in (stream, validation) if each is not None]
    if source is not None and Path(source).suffix.lower() in TABLES.suffixes:
        counts = [count.replace("examples", "rows") for count in counts]
        counts[0] += f" of {source}"
    elif source is not None:
        counts[0] += f" ({source})"
    if validation is not None:
        counts[1] += " for validation"
    weights, trainable = (
        sum(math.prod(v.shape) for v in variables)
        for variables in (model.weights, model.trainable_weights)
    )
    facts = {
        "run": str(run),
        "data": ", ".join(counts),
        "model": f"{type(model).__name__}, {weights:,} parameters ({trainable:,} trainable)",
        "devices": f"{_batch(len(devices), stream.batch_size)} ({_names(devices)})",
        "precision": model.dtype_policy.name,
    }
    return aligned(facts, least_width)


def stage(model: Any, number: int, stages: Sequence[Any]) -> str:
    """The line for a stage that starts: how long it lasts, and how much of the model it trains."""
    until = f"up to epoch {stages[number].after}" if number < len(stages) else "to the end"
    sizes = [
        sum(math.prod(v.shape) for v in variables)
        for variables in (model.trainable_weights, model.weights)
    ]
    return f"stage {number + 1} of {len(stages) + 1}, {until}: {sizes[0]:,} of {sizes[1]:,} " + (
        "parameters are trained"
    )


def _count(stream: Any) -> str:
    if getattr(stream, "num_examples", None) is not None:
        return f"{stream.num_examples:,} examples"
    if stream.arrays is not None:
        first = stream.arrays
        while isinstance(first, (tuple, list, dict)):
            first = next(iter(first.values())) if isinstance(first, dict) else first[0]
        return f"{len(first):,} examples"
    if stream.num_batches is not None:
        return f"{stream.num_batches:,} batches"
    return "an unknown number of batches"


def _batch(num_devices: int, batch_size: int | None) -> str:
    if batch_size is None:
        return f"{num_devices}, batches of the data's own size"
    if batch_size % num_devices:
        return f"{num_devices}, a global batch of {batch_size:,}"
    return f"{num_devices} x {batch_size // num_devices:,} = a global batch of {batch_size:,}"


def _names(devices: Sequence[str]) -> str:
    if len(devices) <= _MOST_DEVICES:
        return ", ".join(devices)
    return f"{devices[0]}, {devices[1]} to {devices[-1]}"


def ending(
    run: Path,
    result: Mapping[str, Any],
    *,
    monitor: str | None = None,
    width: int | None = None,
    restored: int | None = None,
    can_evaluate: bool = True,
) -> list[str]:
    """The lines for a run that ended: metrics, files, and what to do next.

    A command that is longer than `width` continues on the next line, so that it can be copied.
    `restored` is the epoch whose weights a callback put back after the last one.
    """
    rate = result["examples_per_second"]
    speed = f" ({rate_text(rate)} examples/s)" if rate is not None and math.isfinite(rate) else ""
    metrics = {
        name: value
        for name, value in result.items()
        if isinstance(value, (float, list)) and name not in ("examples_per_second", "devices")
    }
    facts = {
        "finished": f"{result['steps']:,} steps, {result['examples_seen']:,} examples{speed}",
        "final" if restored is None else "last epoch": as_text(metrics),
    }
    if restored is not None:
        facts["final"] = f"the weights of epoch {restored}, which EarlyStopping restored"
    found = best_epoch(run, monitor)
    if found is not None:
        name, best = found
        facts["best"] = f"{as_text({name: best.value})} in epoch {best.epoch}"
    if careful := no_better(read_object(run / EVALUATION), result["steps"]):
        facts["careful"] = careful
    there = [name for name in (FINAL, BEST, REPORT) if (run / name).is_file()]
    if kept := kept_models.kept(run):
        there.append(f"{BEST_MODELS}/ (the {len(kept)} best)")
    facts["folder"] = f"{run}: {', '.join(there)}"
    is_other = found is not None and restored is None and (run / BEST).is_file()
    is_other = is_other and found is not None and found[1].epoch != _last_epoch(run)
    following = _next(run, result, is_best_other=is_other)
    if not can_evaluate:
        del following["evaluate"]
    lines = aligned(facts | following)
    first = len(lines) - len(following)
    lines[first:] = [_broken(line, width) for line in lines[first:]]
    if result.get("stopped"):
        lines.insert(0, f"stopped early: {result['stopped']}")
    if result.get("saved") == "weights":
        lines.append(
            f"{FINAL} holds only the weights, for `load_weights`: Keras cannot save the model's "
            "class. Give the class a `get_config` that returns its constructor's arguments."
        )
    return lines


def _last_epoch(run: Path) -> int | None:
    epochs = of_kind(read(run), EPOCH)
    return epochs[-1].get("epoch") if epochs else None


def _next(run: Path, result: Mapping[str, Any], *, is_best_other: bool) -> dict[str, str]:
    """Commands. If the best epoch is not the last one, its model is the one to evaluate."""
    config = read_config(run) or {}
    # A run that stopped early stays stopped: with more epochs, it would train none of them.
    is_stopped = bool(result.get("stopped"))
    if "recipe" not in config and "model" not in config:  # Started by `kerasdist.fit`.
        model = f"kerasdist.load({str(run)!r}, 'best')" if is_best_other else repr(str(run))
        evaluate = {"evaluate": f"kerasdist.evaluate({model}, data)"}
        if is_stopped:
            again = f"kerasdist.fit(..., run_dir='another folder', init_from={str(run)!r})"
            return evaluate | {"new run": again}
        more = f"kerasdist.fit(..., run_dir={str(run)!r}, epochs={2 * result['epochs']})"
        return evaluate | {"continue": more}
    steps = (config.get("options") or {}).get("steps")
    more = f"--steps {2 * result['steps']}" if steps else f"--epochs {2 * result['epochs']}"
    place = shlex.quote(str(run))
    which = " --which best" if is_best_other else ""
    evaluate = {"evaluate": f"kerasdist evaluate {place}{which}"}
    if is_stopped:
        return evaluate | {"new run": f"kerasdist fit {place} --init-from {place}"}
    return evaluate | {"continue": f"kerasdist fit {place} --run-dir {place} {more}"}


def _broken(line: str, width: int | None) -> str:
    """A command on several lines, as a shell reads them, if one is too short for it."""
    if width is None or len(line) <= width or " --" not in line:
        return line
    first, *options = line.split(" --")
    return " \\\n    ".join([first, *(f"--{option}" for option in options)])


def aligned(facts: Mapping[str, str], least_width: int = 0) -> list[str]:
    """A line per fact: its title, and in a second column its text."""
    width = max(least_width, *map(len, facts))
    return [f"{name:<{width}}  {value}" for name, value in facts.items()]
