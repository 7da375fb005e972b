"""Reads batches with Python in background threads, as TF1's Coordinator and QueueRunner did.

The caller gets an exception of the source with its traceback, and no thread is left over.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Generator, Iterator

import tensorflow as tf

from kerasdist.data.batches import Batch, Spec, as_arrays, count_examples, relaxed_spec, spec_of
from kerasdist.data.buffer import END, PassBuffer
from kerasdist.errors import KerasdistError


class Reader:
    """Runs a source in the background and offers its passes as `tf.data.Dataset`s.

    The source is one of two functions. `make_batches(epoch, start)` starts a new pass each time.
    `read()` returns the next batch; it ends a pass with None, `StopIteration` or
    `OutOfRangeError`, and the next call begins another pass.

    The shapes of the first batch hold until a batch differs in some dimension. That batch ends the
    dataset, and `reopen` continues with this dimension unknown. So a step compiles once more, not
    once per length.
    """

    def __init__(
        self,
        make_batches: Callable[[int, int], Iterator[Batch]] | None = None,
        *,
        read: Callable[[], Batch] | None = None,
        num_threads: int = 1,
        capacity: int = 8,
        name: str = "data",
    ):
        self._make_batches = make_batches
        self._read = read
        self._num_threads = num_threads
        self._capacity = capacity
        self._name = name
        self._pass: PassBuffer | None = None
        self._opened: tuple[int, int] | None = None
        self._spec: Spec = None
        self.last_change: tuple[str, Spec] = ("", None)

    def first_batch(self) -> Batch:
        """Reads the first batch, None if there is none. The first pass still returns it."""
        current = self._pass or self._start(0, 0)
        first = current.peek(use=False)
        if first is not END:
            return first
        current.raise_failure()
        return None

    @property
    def element_spec(self) -> Spec:
        """The spec of the batches, None if there are none."""
        if self._spec is None:
            first = self.first_batch()
            self._spec = None if first is None else spec_of(first)
        return self._spec

    def open(self, epoch: int, start: int) -> tf.data.Dataset:
        """The batches of a pass, from batch `start` on."""
        if self.element_spec is None:
            raise KerasdistError(
                f"Received `{self._name}` without a single batch. Expected at least one. Check the "
                "code that reads it."
            )
        current = self._pass
        # `read` cannot return the batch again that was read to learn the shapes.
        is_here = self._read is not None or self._opened == (epoch, start)
        if current is None or current.is_used or not is_here:
            current = self._start(epoch, start)
        if self._read is not None:
            current.number, current.num_to_skip = 0, start
        return self._dataset(current)

    def reopen(self) -> tf.data.Dataset | None:
        """At the end of a dataset: the rest of the pass if only the shapes changed, else None."""
        current = self._pass
        if current is None:
            return None
        current.raise_failure()
        if current.relaxed is None:
            return None
        self._spec, current.relaxed = current.relaxed, None
        return self._dataset(current)

    def check(self) -> None:
        """Raises a failure of the threads, unless batches from before it may still be used."""
        if self._pass is not None:
            self._pass.raise_failure(if_overdue=True)

    def close(self) -> None:
        """Ends the background threads and waits for them."""
        if self._pass is not None:
            self._pass.close()
            self._pass = None

    def _dataset(self, current: PassBuffer) -> tf.data.Dataset:
        # TensorFlow never frees this function (2.21). The references are weak, else it would keep
        # the data, too. It is bound to this pass: an iterator of an earlier pass that still exists
        # must not read from it.
        weak_self, weak_pass = weakref.ref(self), weakref.ref(current)

        def batches() -> Iterator[Batch]:
            reader, pass_ = weak_self(), weak_pass()
            return iter(()) if reader is None or pass_ is None else reader._batches(pass_)

        return tf.data.Dataset.from_generator(batches, output_signature=self._spec)

    def _start(self, epoch: int, start: int) -> PassBuffer:
        self.close()
        current = self._pass = PassBuffer(self._capacity, self._num_threads, start)
        self._opened = (epoch, start)
        current.threads = [
            threading.Thread(
                target=self._fill,
                args=(current, epoch, start),
                name=f"kerasdist-reader-{i}",
                daemon=True,
            )
            for i in range(self._num_threads)
        ]
        for thread in current.threads:
            thread.start()
        return current

    def _fill(self, current: PassBuffer, epoch: int, start: int) -> None:
        failure: BaseException | None = None
        try:
            batches = self._make_batches(epoch, start) if self._make_batches else self._reads()
            first = start if self._read is None else 0
            while current.reserve():
                batch = next(batches, END)
                if batch is END:
                    break
                where = self._where(first + current.num_read)
                arrays = as_arrays(batch, where)
                count_examples(arrays, where)
                current.put(arrays)
            if isinstance(batches, Generator):
                batches.close()  # Runs the `finally` of the generator in this thread, now.
        except BaseException as error:  # noqa: BLE001 - the caller gets it, whatever it is
            failure = error
        current.finish(failure)

    def _reads(self) -> Iterator[Batch]:
        while self._read is not None:
            try:
                batch = self._read()
            except (StopIteration, tf.errors.OutOfRangeError):
                return
            if batch is None:
                return
            yield batch

    def _where(self, number: int) -> str:
        return f"batch {number} (from 0) of `{self._name}`"

    def _batches(self, current: PassBuffer) -> Iterator[Batch]:
        while current.num_to_skip and current.peek() is not END:
            current.pop()
            current.num_to_skip -= 1
        while (batch := current.peek()) is not END:
            try:
                relaxed = relaxed_spec(self._spec, batch, self._where(current.number))
            except KerasdistError as error:
                current.fail(error)
                return
            if relaxed is not None:
                self.last_change = (self._where(current.number), spec_of(batch))
                current.relaxed = relaxed
                return
            current.pop()
            yield batch
