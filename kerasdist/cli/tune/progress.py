"""How far a study is, as two phases: its trials, and the epochs of the one that runs."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from kerasdist.phases.phase import Phase, phase


class Progress:
    """Is told of trials and their epochs, by the threads that wait for them.

    Args:
        trials: The phase of the study, which has as many parts as trials.
        running: The phase of what runs.
        epochs: The epochs of a trial; None if that is not known.
    """

    def __init__(self, trials: Phase, running: Phase, epochs: int | None):
        self._trials, self._phase, self._epochs = trials, running, epochs
        self._running: dict[int, int] = {}
        self._guard = threading.Lock()

    def begin(self, number: int) -> None:
        with self._guard:
            self._running[number] = 0
            self._changed()

    def epoch(self, number: int, epoch: int) -> None:
        """So many epochs of a trial are over."""
        with self._guard:
            self._running[number] = epoch
            self._changed()

    def end(self, number: int) -> None:
        with self._guard:
            del self._running[number]
            self._trials.advance()
            self._changed()

    def _changed(self) -> None:
        numbers = ", ".join(map(str, sorted(self._running)))
        is_one = len(self._running) == 1
        self._phase.total = self._epochs if is_one else None
        self._phase.title = f"trial {numbers}" if is_one else f"running {numbers or 'none'}"
        if is_one:
            (epochs,) = self._running.values()
            self._phase.title += ", epoch" if self._epochs else f", epoch {epochs}"
            self._phase.reached(epochs)


@contextlib.contextmanager
def showing(wanted: int, done: int, epochs: int | None) -> Iterator[Progress]:
    """Shows the trials of a study while the block runs them. `done` of them are over."""
    with phase("trials", wanted, unit="trial") as trials:
        trials.reached(done)
        with phase("starting") as running:
            yield Progress(trials, running, epochs)
