"""The buffer of one pass, between the threads that read batches and the thread that uses them."""

from __future__ import annotations

import threading
import time
import warnings
from collections import deque
from typing import Any

from kerasdist.data.batches import Batch, Spec

# After a failure, batches that were read before it are used for this long. Then the failure ends
# the pass, so that it does not wait for slow steps.
_GRACE_SECONDS = 0.25
# How long `close` waits for a thread before it warns.
_PATIENCE_SECONDS = 5.0

# What `peek` returns at the end of a pass.
END: Any = object()


class PassBuffer:
    """A bounded buffer of batches.

    A thread reserves a slot before it reads a batch. So the source is never more than `capacity`
    batches ahead, and only one batch ahead until the first one is used: the step may still be
    compiling.
    """

    def __init__(self, capacity: int, num_threads: int, start: int):
        self._capacity = capacity
        self._batches: deque[Batch] = deque()
        self._num_reserved = 0
        self._num_reading = num_threads
        self._is_closed = False
        self._is_ending = False
        self._failure: BaseException | None = None
        self._failed_at = 0.0
        self._change = threading.Condition()
        self.is_used = False
        self.number = start  # The number of the batch at the front.
        self.num_read = 0
        self.num_to_skip = 0
        self.relaxed: Spec | None = None
        self.threads: list[threading.Thread] = []

    def reserve(self) -> bool:
        """Waits for a free slot; False if the pass has ended."""

        def is_settled() -> bool:
            taken = len(self._batches) + self._num_reserved
            room = taken < (self._capacity if self.is_used else 1)
            return room or self._is_ending or self._is_closed

        with self._change:
            self._change.wait_for(is_settled)
            if self._is_ending or self._is_closed:
                return False
            self._num_reserved += 1
            return True

    def put(self, batch: Batch) -> None:
        with self._change:
            self._num_reserved -= 1
            self.num_read += 1
            self._batches.append(batch)
            self._change.notify_all()

    def finish(self, failure: BaseException | None) -> None:
        """Ends one thread. Batches that other threads are still reading count to the pass."""
        with self._change:
            self._is_ending = True
            self._num_reading -= 1
            if failure is not None and self._failure is None:
                self._failure, self._failed_at = failure, time.monotonic()
            self._change.notify_all()

    def peek(self, *, use: bool = True) -> Batch:
        """Waits for the next batch and leaves it in the buffer; `END` at the end."""
        with self._change:
            if use and not self.is_used:
                self.is_used = True
                self._change.notify_all()
            self._change.wait_for(
                lambda: self._batches or self._is_closed or not self._num_reading or self._failure
            )
            if self._is_closed or self._is_overdue() or not self._batches:
                return END
            return self._batches[0]

    def pop(self) -> None:
        with self._change:
            if self._batches:  # It is empty if it was closed meanwhile.
                self._batches.popleft()
                self.number += 1
                self._change.notify_all()

    def _is_overdue(self) -> bool:
        return self._failure is not None and time.monotonic() - self._failed_at > _GRACE_SECONDS

    def fail(self, failure: BaseException) -> None:
        """Ends the pass at the batch at the front, which is not usable."""
        with self._change:
            self._failure, self._failed_at = failure, 0.0

    def raise_failure(self, *, if_overdue: bool = False) -> None:
        with self._change:
            if self._failure is None or (if_overdue and not self._is_overdue()):
                return
            failure, self._failure = self._failure, None
        raise failure

    def close(self) -> None:
        """Ends the threads and waits for them."""
        with self._change:
            self._is_closed = True
            self._batches.clear()
            self._change.notify_all()
        for thread in self.threads:
            thread.join(_PATIENCE_SECONDS)
            if thread.is_alive():
                warnings.warn(
                    f"The thread {thread.name!r} is still reading a batch. Expected it to end "
                    "within seconds. Check what your data waits for, or press Ctrl-C to leave the "
                    "thread behind.",
                    stacklevel=2,
                )
                thread.join()
        self.threads = []
