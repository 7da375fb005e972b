"""How far a study is, as one phase: its trials, and the epochs of those that run."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from kerasdist.phases.phase import Phase, phase

# The bar moves by parts of a trial, too.
_PARTS = 1000


class Progress:
    """Is told of trials and their epochs, by the threads that wait for them.

    Args:
        shown: The phase.
        wanted: The trials of the study.
        done: How many of them are over.
        epochs: The epochs of a trial; None if that is not known.
    """

    def __init__(self, shown: Phase, wanted: int, done: int, epochs: int | None):
        self._shown, self._wanted, self._done, self._epochs = shown, wanted, done, epochs
        self._running: dict[int, int] = {}
        self._guard = threading.Lock()
        self._changed()

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
            self._done += 1
            self._changed()

    def _changed(self) -> None:
        done = float(self._done)
        if self._epochs:
            done += sum(min(1.0, epochs / self._epochs) for epochs in self._running.values())
        self._shown.title = self._title()
        self._shown.reached(int(done * _PARTS))

    def _title(self) -> str:
        if not self._running:
            return f"{self._done} of {self._wanted} trials"
        numbers = ", ".join(map(str, sorted(self._running)))
        title = f"trial{'s' * (len(self._running) > 1)} {numbers} of {self._wanted}"
        if len(self._running) > 1:
            return title
        (epochs,) = self._running.values()
        of = f" of {self._epochs}" if self._epochs else ""
        return f"{title}, {epochs}{of} epochs" if epochs else f"{title}, starting"


@contextlib.contextmanager
def showing(wanted: int, done: int, epochs: int | None) -> Iterator[Progress]:
    """Shows the trials of a study while the block runs them."""
    with phase("trials", wanted * _PARTS) as shown:
        yield Progress(shown, wanted, done, epochs)
