"""Reads all files of a run's folder into one object, without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from kerasdist.runs import metrics_log
from kerasdist.runs.catalog import current_status, read_object
from kerasdist.runs.file_names import CONFIG, ENVIRONMENT, EVALUATION, MODEL, RESULT
from kerasdist.runs.metrics_log import Best, Line, count, finite, metrics_of
from kerasdist.runs.results import direction
from kerasdist.runs.results.data_title import data_title
from kerasdist.runs.results.headline import headline

# Numbers in result.json that are not metrics.
_NOT_METRICS = {"steps", "epochs", "examples_seen", "examples_per_second"}
# The name of made-up data in result.json.
SYNTHETIC = "synthetic"
# How many of the last logged steps are read if not all are wanted.
_LAST_STEPS = 20


@dataclass(frozen=True)
class Run:
    """The content of a run's folder. A file that is missing or broken is an empty dict here."""

    path: Path
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    result: Mapping[str, Any]
    model: Mapping[str, Any]
    evaluation: Mapping[str, Any]
    steps: tuple[Line, ...]
    epochs: tuple[Line, ...]
    status: str

    @property
    def name(self) -> str:
        """What its runs are called: the name of the data or of the recipe; the class of a model."""
        if "name" in self.config:
            return str(self.config["name"])
        if "recipe" in self.config:
            return Path(str(self.config["recipe"])).name
        if "model" in self.config:
            return str(self.config["model"]).rpartition(":")[2]
        return str(self.model.get("class_name", self.path.name))

    @property
    def options(self) -> Mapping[str, Any]:
        """The options of the command that started the run."""
        options = self.config.get("options")
        return options if isinstance(options, Mapping) else {}

    @property
    def dataset(self) -> str | None:
        """Where the data comes from, such as "files" or "synthetic"; None if nothing says it."""
        settings = self.config.get("settings")
        given = settings.get("source") if isinstance(settings, Mapping) else None
        found = self.result.get("dataset") or self.environment.get("dataset")
        found = found or (given if given != "auto" else None)
        return found if isinstance(found, str) else None

    @property
    def data_title(self) -> str | None:
        """What to call the data: the name of its file or folder, or else where it comes from."""
        return data_title(self.dataset, self.config)

    @property
    def is_synthetic(self) -> bool:
        """Whether it trains on synthetic data. Its metrics cannot be compared with real ones."""
        return self.dataset == SYNTHETIC

    @property
    def started(self) -> str | None:
        """When the run was last started, in ISO 8601."""
        time = self.environment.get("time")
        return time if isinstance(time, str) else None

    @property
    def started_here(self) -> str | None:
        """The same to the minute, in this machine's time zone, as the lines of `fit` have it."""
        if self.started is None:
            return None
        try:
            time = datetime.fromisoformat(self.started).astimezone()
        except (ValueError, OverflowError):  # The file may hold anything.
            return self.started
        return f"{time:%Y-%m-%d %H:%M}"

    @property
    def num_steps(self) -> int:
        """How many steps are done."""
        logged = [line["step"] for line in (*self.steps[-1:], *self.epochs[-1:])]
        return max([*logged, count(self.result.get("steps")) or 0])

    @property
    def num_epochs(self) -> int | None:
        """How many epochs are done; None if there is no record of any."""
        known = count(self.result.get("epochs")) if self.status == "finished" else None
        return known if known is not None else self._last_epoch()

    def _last_epoch(self) -> int | None:
        return count(self.epochs[-1].get("epoch")) if self.epochs else None

    @property
    def rate(self) -> float | None:
        """Examples per second."""
        rates = [self.result.get("examples_per_second")]
        rates += [line.get("examples_per_second") for line in reversed(self.steps)]
        return next((number for rate in rates if (number := finite(rate)) is not None), None)

    @property
    def devices(self) -> list[str]:
        """The names of the devices it was trained on."""
        found = self.result.get("devices") or self.environment.get("devices")
        return [str(name) for name in found] if isinstance(found, list) else []

    @property
    def metric_names(self) -> list[str]:
        """The names of all logged metrics, in the order in which they first appeared."""
        return list({name: None for line in self.epochs for name in metrics_of(line)})

    @property
    def final(self) -> dict[str, float | None]:
        """The metrics at the end of the run, or after its last epoch so far."""
        logged = metrics_of(self.result, _NOT_METRICS) if self.status == "finished" else {}
        if not logged and self.epochs:
            logged = metrics_of(self.epochs[-1])
        return {name: finite(value) for name, value in logged.items()}

    @property
    def monitor(self) -> str:
        """The name of the metric that decides which model best.keras holds."""
        chosen = self.options.get("monitor")
        # Not every epoch has a validation, the last one neither.
        logged = {**dict.fromkeys(self.metric_names), **self.final}
        return metrics_log.monitored(logged, str(chosen) if chosen else None)

    @property
    def headline(self) -> str | None:
        """The name of the metric that people look at first."""
        return headline({**dict.fromkeys(self.metric_names), **self.final})

    def last(self, name: str) -> float | None:
        """The final value of a metric, or the newest: not every epoch has a validation."""
        logged = (finite(line.get(name)) for line in reversed(self.epochs) if name in line)
        return self.final[name] if name in self.final else next(logged, None)

    def best(self, name: str) -> Best | None:
        """The best value of a metric over the epochs; the first of equal values."""
        return metrics_log.best(self.epochs, name, self.known_directions)

    @property
    def known_directions(self) -> dict[str, bool]:
        """By the name of a metric: whether a higher value is better, as far as the run says it."""
        return direction.of_environment(self.environment)


def read(path: Path, *, status: str | None = None, whole: bool = True) -> Run:
    """Reads a run.

    Args:
        path: The run's folder.
        status: The run's status, if the caller knows better than the files: a run that continues
            still has the result of its last end.
        whole: Whether to read every logged step, and the files that only a page shows.
    """
    lines = metrics_log.read(path, last_steps=None if whole else _LAST_STEPS)
    return Run(
        path=path,
        config=read_object(path / CONFIG),
        environment=read_object(path / ENVIRONMENT),
        result=read_object(path / RESULT),
        model=read_object(path / MODEL) if whole else {},
        evaluation=read_object(path / EVALUATION) if whole else {},
        steps=metrics_log.of_kind(lines, metrics_log.STEP),
        epochs=metrics_log.of_kind(lines, metrics_log.EPOCH),
        status=status or current_status(path),
    )
