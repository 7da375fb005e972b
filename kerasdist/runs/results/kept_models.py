"""The models of the best epochs in a run's folder: `best/`, and the index of what it holds.

best.keras is the best model of all. With `keep_best=3`, `best/` holds the three best ones, each
named after its epoch; the first of them is the same file as best.keras. `index.json` ranks them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kerasdist.runs.atomic import write_json
from kerasdist.runs.catalog import read_object
from kerasdist.runs.file_names import BEST_MODELS
from kerasdist.runs.metrics_log import count, finite
from kerasdist.runs.results.direction import Known, is_higher_better, of_run

_INDEX = "index.json"
_RANKED = re.compile(r"best-([1-9]\d*)")


@dataclass(frozen=True)
class KeptModel:
    """The model of an epoch, counted from 1, and its monitored value.

    `left_at` is None, or the step at which better models pushed it out. Its file stays until a
    checkpoint knows of that: a run that resumes before may need it again.
    """

    epoch: int
    value: float
    left_at: int | None = None

    @property
    def file(self) -> str:
        """Its path in the run's folder."""
        return f"{BEST_MODELS}/epoch-{self.epoch:04d}.keras"


def rank_of(which: str) -> int | None:
    """The rank that a name of a model asks for; None if it is not such a name.

    Example:
        >>> rank_of("best-2"), rank_of("best"), rank_of("final")
        (2, 1, None)
    """
    found = _RANKED.fullmatch(which)
    return int(found[1]) if found else 1 if which == "best" else None


def ranked(
    models: Iterable[KeptModel], monitor: str, known: Known | None = None
) -> list[KeptModel]:
    """The models, the best first; of equal ones the earlier epoch first.

    `known` is what the run says of its metrics.

    Example:
        >>> models = [KeptModel(1, 0.5), KeptModel(2, 0.3), KeptModel(3, 0.5)]
        >>> [model.epoch for model in ranked(models, "val_loss")]
        [2, 1, 3]
    """
    sign = -1.0 if is_higher_better(monitor, known) else 1.0
    return sorted(models, key=lambda model: (sign * model.value, model.epoch))


def read(run: Path) -> list[KeptModel]:
    """All models that the index of a run lists and whose files are there, the best first."""
    content = read_object(run / BEST_MODELS / _INDEX)
    listed = [*_list(content.get("models")), *_list(content.get("left"))]
    found = []
    for each in listed:
        epoch, value = count(each.get("epoch")), finite(each.get("value"))
        if epoch is not None and value is not None:
            model = KeptModel(epoch, value, count(each.get("left_at")))
            if (run / model.file).is_file():
                found.append(model)
    return ranked(found, str(content.get("monitor")), of_run(run))


def kept(run: Path) -> list[KeptModel]:
    """The models that can be loaded by their rank, the best first."""
    return [model for model in read(run) if model.left_at is None]


def write(run: Path, monitor: str, models: Sequence[KeptModel]) -> None:
    """Replaces the index."""
    staying = [model for model in models if model.left_at is None]
    content = {
        "monitor": monitor,
        "models": [
            {"rank": rank, "epoch": model.epoch, "value": model.value, "file": model.file}
            for rank, model in enumerate(ranked(staying, monitor, of_run(run)), start=1)
        ],
        "left": [
            {"epoch": model.epoch, "value": model.value, "left_at": model.left_at}
            for model in models
            if model.left_at is not None
        ],
    }
    write_json(run / BEST_MODELS / _INDEX, content)


def is_comparable(value: float) -> bool:
    """Whether a monitored value can have a rank: NaN and infinity have none."""
    return math.isfinite(value)


def _list(value: object) -> list[dict[str, object]]:
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
