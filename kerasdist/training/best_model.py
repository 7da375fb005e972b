"""best.keras: the weights with the best monitored value so far."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from kerasdist.engine.engine import Engine
from kerasdist.errors import KerasdistError, closest
from kerasdist.runs.file_names import BEST
from kerasdist.runs.folder import RunFolder
from kerasdist.runs.metrics_log import is_higher_better, monitored


class BestModel:
    """Keeps best.keras in a run's folder, if there is one.

    `attempt(what, write)` writes, and returns the error if that failed: then the weights are kept
    until they can be written. `value` is the best so far, `written` that of the file.
    """

    def __init__(
        self,
        engine: Engine,
        folder: RunFolder | None,
        monitor: str | None,
        attempt: Callable[[str, Callable[[], Any]], Exception | None],
    ):
        self._engine, self._folder, self._monitor = engine, folder, monitor
        self._attempt = attempt
        self._unwritten: list[Any] | None = None
        self.value: float | None = None
        self.written: float | None = None

    def keep(self, logs: dict[str, Any]) -> None:
        """Writes the file when the monitored value of an epoch is the best so far."""
        if self._folder is None:
            return
        name = monitored(logs, self._monitor)
        value = logs.get(name)
        if not isinstance(value, float):
            known = [key for key, logged in logs.items() if isinstance(logged, float)]
            raise KerasdistError(
                f"Received `monitor={name!r}`. Expected one of {', '.join(known)}."
                f"{closest(name, known)} Correct the name."
            )
        if self._unwritten is None and not (self._folder.path / BEST).exists():
            self.value = None  # The folder was lost: the best since then is better than none.
        is_better = operator.gt if is_higher_better(name) else operator.lt
        if self.value is None or is_better(value, self.value):
            self.value = value
            self._engine.state.write_back("trainable", "other", "optimizer")
            self._write(self._engine.ema_weights() if self._engine.settings.ema else None)
        else:
            self.write_missing()

    def _write(self, weights: list[Any] | None) -> Exception | None:
        """Writes the file, by default of the weights as they are."""
        folder, model = self._folder, self._engine.model
        if folder is None:
            return None
        error = self._attempt(BEST, lambda: folder.save(BEST, model, weights))
        if error is None:
            self._unwritten, self.written = None, self.value
        else:
            self._unwritten = weights or model.get_weights()
        return error

    def write_missing(self) -> Exception | None:
        """The best weights so far, if they could not be written when they were the newest."""
        return None if self._unwritten is None else self._write(self._unwritten)
