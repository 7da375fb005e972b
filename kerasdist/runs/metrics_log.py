"""metrics.jsonl: one object per logged step and epoch, and which epoch was the best."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kerasdist.runs.folder import METRICS

_HIGHER_IS_BETTER = ("acc", "auc", "precision", "recall", "f1", "iou", "r2", "score")


def is_higher_better(name: str) -> bool:
    """Whether a logged value is the better the higher it is, by its name."""
    return any(word in name for word in _HIGHER_IS_BETTER)


def monitored(logs: Mapping[str, Any], monitor: str | None) -> str:
    """The name of the value that decides what is best."""
    return monitor or ("val_loss" if "val_loss" in logs else "loss")


def best_epoch(run: Path, monitor: str | None = None) -> tuple[str, dict[str, Any]] | None:
    """The name that decides, and what was logged at the end of the best epoch."""
    epochs = [logs for logs in _logged(run) if logs.get("kind") == "epoch"]
    if not epochs:
        return None
    name = monitored(epochs[-1], monitor)
    known = [logs for logs in epochs if isinstance(logs.get(name), float)]
    if not known:
        return None
    choose = max if is_higher_better(name) else min
    return name, choose(known, key=lambda logs: logs[name])


def _logged(run: Path) -> Iterator[dict[str, Any]]:
    try:
        lines = (run / METRICS).read_text().splitlines()
    except OSError:
        return
    for line in lines:
        with contextlib.suppress(ValueError):  # half a line, of a run that was killed
            yield json.loads(line)
