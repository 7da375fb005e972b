"""What the files of a run's folder say, whole or in part, without TensorFlow."""

from __future__ import annotations

import fcntl
import json
import math
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerasdist.runs import folder
from kerasdist.runs.lock import LOCK
from kerasdist.runs.metrics_log import is_higher_better, monitored
from kerasdist.runs.processes import is_alive

EVALUATION = "evaluation.json"
# Of the logged values, these are no metrics.
_NO_METRICS = {"kind", "step", "epoch", "learning_rate", "examples_per_second", "input_wait"}
_NO_RESULTS = {"steps", "epochs", "examples_seen", "examples_per_second"}
# Of the lines of steps, so many at the end are read where not all are wanted.
_LAST_STEPS = 20


@dataclass(frozen=True)
class Best:
    """The best value of a metric, and the epoch it is of."""

    value: float
    epoch: int


@dataclass(frozen=True)
class Run:
    """The content of a run's folder. A file that is missing or broken is an empty dict here."""

    path: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    result: Mapping[str, Any]
    model: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    steps: tuple[Mapping[str, Any], ...]
    epochs: tuple[Mapping[str, Any], ...]
    status: str

    @property
    def name(self) -> str:
        """The recipe's name, or the class of the model."""
        if "recipe" in self.config:
            return Path(str(self.config["recipe"])).name
        if "model" in self.config:
            return str(self.config["model"]).rpartition(":")[2]
        return str(self.model.get("class_name", self.path.name))

    @property
    def options(self) -> Mapping[str, Any]:
        return _mapping(self.config.get("options"))

    @property
    def started(self) -> str | None:
        """When it was started the last time, in ISO 8601."""
        time = self.environment.get("time")
        return time if isinstance(time, str) else None

    @property
    def num_steps(self) -> int:
        logged = [line["step"] for line in (*self.steps[-1:], *self.epochs[-1:])]
        return max([*logged, _count(self.result.get("steps")) or 0])

    @property
    def num_epochs(self) -> int | None:
        known = _count(self.result.get("epochs")) if self.status == "finished" else None
        return known if known is not None else self._last_epoch()

    def _last_epoch(self) -> int | None:
        return _count(self.epochs[-1].get("epoch")) if self.epochs else None

    @property
    def rate(self) -> float | None:
        """Examples a second."""
        rates = [self.result.get("examples_per_second")]
        rates += [line.get("examples_per_second") for line in reversed(self.steps)]
        return next((number for rate in rates if (number := _finite(rate)) is not None), None)

    @property
    def devices(self) -> list[str]:
        found = self.result.get("devices") or self.environment.get("devices")
        return [str(name) for name in found] if isinstance(found, list) else []

    @property
    def metric_names(self) -> list[str]:
        """Of all epochs, in the order in which they appeared; without lists of values."""
        names = {
            name: None
            for line in self.epochs
            for name, value in line.items()
            if _is_metric(name, value, _NO_METRICS)
        }
        return list(names)

    @property
    def final(self) -> dict[str, float | None]:
        """The metrics at the end, or after the last epoch there was."""
        source = self.result if self.status == "finished" else {}
        logged = {k: v for k, v in source.items() if _is_metric(k, v, _NO_RESULTS)}
        if not logged and self.epochs:
            logged = {k: v for k, v in self.epochs[-1].items() if _is_metric(k, v, _NO_METRICS)}
        return {name: _finite(value) for name, value in logged.items()}

    @property
    def monitor(self) -> str:
        """The value that decides about best.keras."""
        chosen = self.options.get("monitor")
        return monitored(self.final, str(chosen) if chosen else None)

    def best(self, name: str) -> Best | None:
        """The best value of a metric over the epochs; the first of equal ones."""
        found = [
            Best(value, _count(line.get("epoch")) or 0)
            for line in self.epochs
            if (value := _finite(line.get(name))) is not None
        ]
        pick = max if is_higher_better(name) else min
        return pick(found, key=lambda best: best.value) if found else None


def read(path: Path, *, status: str | None = None, whole: bool = True) -> Run:
    """Reads a run.

    Args:
        path: The run's folder.
        status: How it stands, for one who knows better than the files: a run that goes on still
            has the result of its last end.
        whole: Whether every logged step is wanted, and what only a page shows.
    """
    lines = list(_lines(path / folder.METRICS, whole))
    return Run(
        path=path,
        config=_object(path / folder.CONFIG),
        environment=_object(path / folder.ENVIRONMENT),
        result=_object(path / folder.RESULT),
        model=_object(path / folder.MODEL) if whole else {},
        evaluation=_object(path / EVALUATION) if whole else {},
        steps=tuple(line for line in lines if line.get("kind") == "step"),
        epochs=tuple(line for line in lines if line.get("kind") == "epoch"),
        status=status or status_of(path),
    )


def status_of(path: Path) -> str:
    """result.json's status, "running", or "unfinished" for a run that nobody trains."""
    return "running" if _is_held(path / LOCK) else folder.status(path)


def _is_held(lock: Path) -> bool:
    """Whether a process holds a run's lock, without changing its file."""
    try:
        with open(lock, "rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
            except OSError:  # A file system without locks: the content decides.
                holder = json.loads(file.read(4096))
                is_here = holder["host"] == socket.gethostname()
                return bool(is_here and is_alive(int(holder["pid"])))
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return False


def _object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _lines(path: Path, whole: bool) -> Iterator[dict[str, Any]]:
    try:
        texts = path.read_bytes().splitlines()
    except OSError:
        return
    if not whole:
        # Told apart before they are parsed, which takes most of the time.
        texts = [t for t in texts[:-_LAST_STEPS] if b'"epoch"' in t] + texts[-_LAST_STEPS:]
    for text in texts:
        try:
            line = json.loads(text)
        except ValueError:  # Half a line, of a run that was killed.
            continue
        if isinstance(line, dict) and _count(line.get("step")) is not None:
            yield line


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _finite(value: Any) -> float | None:
    return float(value) if _is_number(value) and math.isfinite(value) else None


def _is_metric(name: str, value: Any, left_out: set[str]) -> bool:
    """Also one that was not finite: a null, or what other writers of JSON make of it."""
    return name not in left_out and (value is None or _is_number(value))


def curve(lines: tuple[Mapping[str, Any], ...], name: str) -> list[tuple[float, float | None]]:
    """`(step, value)` of the lines that log a value; None where it was not finite."""
    return [(float(line["step"]), _finite(line[name])) for line in lines if name in line]
