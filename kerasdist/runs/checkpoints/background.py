"""Saves checkpoints in a background thread, while the training continues."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np


class Saves(Protocol):
    """The part of `kerasdist.runs.checkpoints.Store` that is needed here."""

    def save(
        self, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], /
    ) -> Path: ...


class _Request(NamedTuple):
    step: int
    arrays: Mapping[str, np.ndarray]
    meta: Mapping[str, Any]


class BackgroundSaver:
    """Hands snapshots to one thread that saves them, one at a time.

    While one snapshot is being saved, only the newest of the others waits: a newer one replaces it.
    So at most two snapshots are in memory. A slow disk makes checkpoints rarer, and does not slow
    down the training.

    If a save fails, `error` holds the reason, and the next save is tried as usual: a full disk does
    not end the training. To know whether a save worked, call `wait` and then look at `error`.

    Attributes:
        error: Why the last save failed: an `OSError`, or a `KerasdistError` about arrays that
            cannot be saved. None if it worked.
        last_saved_step: The step of the last save that worked, or None.

    Example:
        >>> import tempfile, numpy as np
        >>> from kerasdist.runs.checkpoints import Store
        >>> with BackgroundSaver(Store(tempfile.mkdtemp())) as saver:
        ...     saver.save(100, {"kernel": np.ones((2, 3))}, {"epoch": 1})
        ...     saver.wait()
        ...     saver.last_saved_step
        100
    """

    def __init__(self, store: Saves):
        self.error: Exception | None = None
        self.last_saved_step: int | None = None
        self._num_ended = 0
        self._store = store
        self._changed = threading.Condition()
        self._waiting: _Request | None = None
        self._saving = False
        self._closed = False
        # A daemon thread: a training that ends with an error must not hang here. If that cuts off
        # a save, the store handles it like any other kill.
        self._thread = threading.Thread(target=self._run, name="kerasdist-saver", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether a snapshot is waiting or being saved."""
        with self._changed:
            return self._saving or self._waiting is not None

    @property
    def outcome(self) -> tuple[int, Exception | None]:
        """How many saves have ended, and the `error` of the last one."""
        with self._changed:
            return self._num_ended, self.error

    def save(self, step: int, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        """Takes a snapshot and returns at once. The arrays must not change afterwards."""
        with self._changed:
            if self._closed:
                raise RuntimeError("`save` was called after `close`")
            self._waiting = _Request(step, arrays, meta)
            self._changed.notify_all()

    def wait(self, seconds: float | None = None) -> None:
        """Waits until every snapshot is saved, or has failed, or these seconds have passed."""
        with self._changed:
            self._changed.wait_for(lambda: not self._saving and self._waiting is None, seconds)

    def close(self) -> None:
        """Saves what is waiting, and ends the thread. May be called more than once."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join()

    def __enter__(self) -> BackgroundSaver:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _run(self) -> None:
        while self._save_next():
            pass

    def _save_next(self) -> bool:
        """Waits for a snapshot and saves it; False if no more will come."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting is not None or self._closed)
            if self._waiting is None:
                return False
            request, self._waiting = self._waiting, None
            self._saving = True
        error: Exception | None = None
        try:
            self._store.save(*request)
        except Exception as raised:  # noqa: BLE001 - no failed save stops the training
            # The frames of the traceback would keep the snapshot in memory.
            error = raised.with_traceback(None)
        step = request.step
        del request
        with self._changed:
            self._num_ended += 1
            self.error = error
            if error is None:
                self.last_saved_step = step
            self._saving = False
            self._changed.notify_all()
        return True
