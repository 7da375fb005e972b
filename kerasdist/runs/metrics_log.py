"""metrics.jsonl: writes, reads and interprets one JSON object per logged step or epoch."""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasdist.runs.atomic import as_json, write_bytes
from kerasdist.runs.file_names import METRICS
from kerasdist.runs.results.direction import Known, is_higher_better, of_run

# One line of the file: `{"kind": "step" or "epoch", "step": 120, "epoch": 3, "loss": 0.5, ...}`.
Line = Mapping[str, Any]

STEP, EPOCH = "step", "epoch"
# Logged values that are not metrics.
NOT_METRICS = {"kind", "step", "epoch", "learning_rate", "examples_per_second", "input_wait"}


@dataclass(frozen=True)
class Best:
    """The best value of a metric, and the epoch that reached it."""

    value: float
    epoch: int


def append(run: Path, fields: Line) -> None:
    """Appends one object to the log: the whole line, or nothing."""
    line = (as_json(fields) + "\n").encode()
    with open(run / METRICS, "ab", buffering=0) as file:
        size = file.tell()
        try:
            if file.write(line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError:
            file.truncate(size)
            raise


def rewind(run: Path, step: int, epoch: int) -> None:
    """Removes the lines that a run resumed after `step` and `epoch` will log again."""
    path = run / METRICS
    if not path.is_file():
        return
    content = path.read_bytes()
    kept = b"".join(
        text + b"\n"
        for text in content.splitlines()
        if (line := _parsed(text)) is not None and _is_done(line, step, epoch)
    )
    if content.startswith(kept):  # The usual case. It works on a full disk, too.
        os.truncate(path, len(kept))
    else:
        write_bytes(path, kept)


def _is_done(line: Line, step: int, epoch: int) -> bool:
    if line.get("kind") == EPOCH:
        return (count(line.get("epoch")) or 0) <= epoch
    return bool(line["step"] <= step)


def read(run: Path, *, last_steps: int | None = None) -> list[Line]:
    """The lines of a run's log, in order; none if there is no log.

    Args:
        run: The run's folder.
        last_steps: Of the logged steps, read only about so many at the end. All epochs are read.
    """
    try:
        texts = (run / METRICS).read_bytes().splitlines()
    except OSError:
        return []
    if last_steps is not None:
        # Parsing takes most of the time, so lines are filtered before it.
        texts = [t for t in texts[:-last_steps] if b'"epoch"' in t] + texts[-last_steps:]
    return [line for text in texts if (line := _parsed(text)) is not None]


def _parsed(text: bytes) -> Line | None:
    try:
        line = json.loads(text)
    except (ValueError, RecursionError):  # Half a line: the run was killed while it wrote it.
        return None
    return line if isinstance(line, dict) and count(line.get("step")) is not None else None


def of_kind(lines: Iterable[Line], kind: str) -> tuple[Line, ...]:
    """The lines of steps (`STEP`) or of epochs (`EPOCH`)."""
    return tuple(line for line in lines if line.get("kind") == kind)


def last_step(run: Path) -> int:
    """The highest logged step; 0 if there is none."""
    return max((line["step"] for line in read(run)), default=0)


def monitored(logs: Line, monitor: str | None) -> str:
    """The name of the metric that decides which epoch is best."""
    return monitor or ("val_loss" if "val_loss" in logs else "loss")


def best(epochs: Sequence[Line], name: str, known: Known | None = None) -> Best | None:
    """The best finite value of a metric over the epochs; the first of equal values.

    `known` is what the run says of its metrics. An epoch whose loss is not finite is never the
    best: nothing was trained in it.
    """
    found = [
        Best(value, count(line.get("epoch")) or 0)
        for line in epochs
        if (value := finite(line.get(name))) is not None and line.get("loss", 0.0) is not None
    ]
    pick = max if is_higher_better(name, known) else min
    return pick(found, key=lambda each: each.value) if found else None


def best_epoch(run: Path, monitor: str | None = None) -> tuple[str, Best] | None:
    """The name of the monitored metric, and its best value in a run."""
    epochs = of_kind(read(run), EPOCH)
    # Not every epoch has a validation.
    names = {name: None for line in epochs for name in line}
    name = monitored(names, monitor) if epochs else ""
    found = best(epochs, name, of_run(run))
    return None if found is None else (name, found)


def metrics_of(values: Line, ignored: Collection[str] = NOT_METRICS) -> dict[str, Any]:
    """The metrics among logged values, without lists of values. None stands for NaN or infinity."""
    return {
        name: value
        for name, value in values.items()
        if name not in ignored and (value is None or _is_number(value))
    }


def curve(lines: Sequence[Line], name: str) -> list[tuple[float, float | None]]:
    """`(step, value)` for the lines that log a value; None where it was not finite."""
    return [(float(line["step"]), finite(line[name])) for line in lines if name in line]


def count(value: Any) -> int | None:
    """The value if it is a whole number of at most 64 bits, else None."""
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    return value if is_whole and abs(value) < 2**63 else None


def finite(value: Any) -> float | None:
    """The value as a float if it is a finite number, else None."""
    try:
        return float(value) if _is_number(value) and math.isfinite(value) else None
    except OverflowError:  # A whole number of hundreds of digits, in a damaged file.
        return None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
