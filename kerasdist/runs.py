"""A run's folder: configuration, metrics, the trained model and the result."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kerasdist.errors import KerasdistError

CONFIG, METRICS, FINAL, RESULT = "config.json", "metrics.jsonl", "final.keras", "result.json"


def write_json(path: Path, content: Any) -> None:
    """Writes beside the file and renames: a reader never sees half of it."""
    draft = path.with_name(f".{path.name}.tmp")
    draft.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(draft, path)


def weights_sha256(model) -> str:
    """Of the bytes of the arrays of `model.get_weights()`, in order."""
    digest = hashlib.sha256()
    for array in model.get_weights():
        digest.update(array.tobytes())
    return digest.hexdigest()


class RunFolder:
    """Writes the files of one run. Refuses a folder that holds another one."""

    def __init__(
        self, path: str | os.PathLike, config: Mapping[str, Any], dataset: str = "caller"
    ):
        self.path = Path(path)
        self._dataset = dataset
        if self.path.exists() and not self.path.is_dir():
            raise KerasdistError(
                f"Received `run_dir={str(path)!r}`, which is a file. Expected a folder. Choose "
                "another name."
            )
        if self.path.exists() and any(self.path.iterdir()):
            raise KerasdistError(
                f"Received `run_dir={str(path)!r}`, which is not empty. Expected a new folder: "
                "nothing of another run is overwritten. Choose another name."
            )
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / CONFIG, dict(config))
        except OSError as error:
            raise KerasdistError(
                f"Received `run_dir={str(path)!r}`, which cannot be written: {error.strerror}. "
                "Expected a folder one can write to. Choose another."
            ) from None

    def log(self, **fields: Any) -> None:
        """Appends one object to metrics.jsonl."""
        with open(self.path / METRICS, "a") as file:
            file.write(json.dumps(fields) + "\n")

    def finish(self, model, result: Mapping[str, Any], ema_weights: list | None) -> None:
        """Saves the model (its averaged weights where there are) and result.json."""
        raw = model.get_weights()
        digest = weights_sha256(model)
        try:
            if ema_weights is not None:
                model.set_weights(ema_weights)
            draft = self.path / "tmp-final.keras"
            model.save(draft)
            os.replace(draft, self.path / FINAL)
        finally:
            if ema_weights is not None:
                model.set_weights(raw)
        content = {**result, "dataset": self._dataset, "weights_sha256": digest}
        write_json(self.path / RESULT, content)


def next_run_folder(parent: str | os.PathLike) -> Path:
    """`parent/0001`, or the next number that was never used."""
    parent = Path(parent)
    numbers = [int(p.name) for p in parent.glob("[0-9]*") if p.name.isdigit()]
    return parent / f"{max(numbers, default=0) + 1:04d}"
