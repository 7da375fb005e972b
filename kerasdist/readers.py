"""Reading batches with Python in the background: what Coordinator and QueueRunner did.

A bounded buffer, the source's exception in the caller with its traceback, and no thread left behind.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.errors import KerasdistError

_POLL_SECONDS = 0.1


class _End:
    """Marks the end of a pass in the buffer."""


class _Failure:
    def __init__(self, error: BaseException):
        self.error = error


def as_arrays(batch: Any) -> Any:
    """A batch with arrays for leaves; floats in Keras's float type, as Keras's own fit does."""

    def leaf(value):
        array = np.asarray(value)
        if array.dtype.kind == "f" and array.dtype.itemsize != 2:
            array = array.astype(keras.config.floatx(), copy=False)
        return array

    if isinstance(batch, dict):
        return {key: as_arrays(value) for key, value in batch.items()}
    if isinstance(batch, tuple):
        return tuple(as_arrays(value) for value in batch)
    if isinstance(batch, list):
        if batch and all(hasattr(value, "shape") and len(value.shape) > 0 for value in batch):
            return tuple(as_arrays(value) for value in batch)
        return leaf(batch)
    return leaf(batch)


def spec_of(batch: Any) -> Any:
    """The spec of batches like this one, of any number of examples."""

    def leaf(array):
        if array.dtype.kind in "OUS":
            return tf.TensorSpec([None, *array.shape[1:]], tf.string)
        return tf.TensorSpec([None, *array.shape[1:]], array.dtype)

    return tf.nest.map_structure(leaf, batch)


def _relaxed(spec: Any, batch: Any) -> Any | None:
    """None if `batch` fits `spec`, else `spec` with None for each dimension that differs."""
    try:
        tf.nest.assert_same_structure(spec, batch)
    except (ValueError, TypeError) as error:
        raise KerasdistError(
            f"Received a batch of another structure than the first: {error}. Expected the same "
            "fields in every batch. Yield all fields always."
        ) from None
    changed = False

    def leaf(own: tf.TensorSpec, array: np.ndarray) -> tf.TensorSpec:
        nonlocal changed
        if len(array.shape) != own.shape.rank:
            raise KerasdistError(
                f"Received a batch with an array of shape {array.shape} after one of shape "
                f"{tuple(own.shape)}. Expected as many dimensions in every batch. Reshape it."
            )
        if own.dtype != tf.string and array.dtype != own.dtype.as_numpy_dtype:
            raise KerasdistError(
                f"Received a batch with an array of type {array.dtype} after one of "
                f"{own.dtype.name}. Expected the same type in every batch. Cast it."
            )
        if own.shape.is_compatible_with(array.shape):
            return own
        changed = True
        sizes = [a if a == b else None for a, b in zip(own.shape, array.shape, strict=True)]
        return tf.TensorSpec(sizes, own.dtype)

    relaxed = tf.nest.map_structure(leaf, spec, batch)
    return relaxed if changed else None


class Reader:
    """Runs `make_batches(epoch, start)` in the background and offers it as a `tf.data.Dataset`.

    The shapes of the first batch hold until a batch differs in a dimension; that one ends the
    dataset, and `reopen` goes on with that dimension unknown: a new shape is compiled for once, not
    for every length.
    """

    def __init__(
        self,
        make_batches: Callable[[int, int], Iterator[Any]] | None,
        *,
        read: Callable[[], Any] | None = None,
        num_threads: int = 1,
        capacity: int = 8,
    ):
        self._make_batches = make_batches
        self._read = read
        self._num_threads = num_threads
        self._capacity = capacity
        self._queue: queue.Queue = queue.Queue(capacity)
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()
        self._pending: list[Any] = []
        self._opened: tuple[int, int] | None = None
        self._relaxed: Any = None
        self.error: BaseException | None = None
        self._spec: Any = None

    @property
    def element_spec(self) -> Any:
        """The spec of the batches; reads the first one if none was read, and keeps it."""
        if self._spec is None:
            self._start(0, 0)
            first = self._next()
            if first is not _End:
                self._pending.append(first)
                self._spec = spec_of(first)
            elif self.error is not None:
                self.raise_error()
        return self._spec

    def open(self, epoch: int, start: int) -> tf.data.Dataset:
        """The batches of a pass from batch `start` on."""
        spec = self.element_spec
        if self._opened != (epoch, start):
            self._start(epoch, start)
        self._opened = None
        return tf.data.Dataset.from_generator(self._batches, output_signature=spec)

    def reopen(self) -> tf.data.Dataset | None:
        """At the end of a dataset: the rest of the pass if only the shapes changed, else None."""
        self.raise_error()
        if self._relaxed is None:
            return None
        self._spec, self._relaxed = self._relaxed, None
        return tf.data.Dataset.from_generator(self._batches, output_signature=self._spec)

    def raise_error(self) -> None:
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def close(self) -> None:
        """Ends the background threads and waits for them."""
        self._stop.set()
        for thread in self._threads:
            thread.join()
        self._threads = []
        self._pending = []
        self._opened = None

    def _start(self, epoch: int, start: int) -> None:
        self.close()
        self._stop = threading.Event()
        self._queue = queue.Queue(self._capacity)
        self._opened = (epoch, start)
        arguments = (epoch, start, self._queue, self._stop)
        self._threads = [
            threading.Thread(
                target=self._fill, args=arguments, name=f"kerasdist-reader-{i}", daemon=True
            )
            for i in range(self._num_threads)
        ]
        for thread in self._threads:
            thread.start()

    def _fill(self, epoch: int, start: int, into: queue.Queue, stop: threading.Event) -> None:
        try:
            if self._make_batches is not None:
                for batch in self._make_batches(epoch, start):
                    if not _put(into, as_arrays(batch), stop):
                        return
            else:
                while not stop.is_set():
                    batch = self._read()
                    if batch is None:
                        break
                    if not _put(into, as_arrays(batch), stop):
                        return
            _put(into, _End, stop)
        except (StopIteration, tf.errors.OutOfRangeError):
            _put(into, _End, stop)
        except BaseException as error:  # noqa: BLE001 - handed to the caller, whatever it is
            _put(into, _Failure(error), stop)

    def _next(self) -> Any:
        while not self._stop.is_set():
            try:
                item = self._queue.get(timeout=_POLL_SECONDS)
            except queue.Empty:
                continue
            if isinstance(item, _Failure):
                self.error = item.error
                return _End
            return item
        return _End

    def _batches(self) -> Iterator[Any]:
        while True:
            batch = self._pending.pop() if self._pending else self._next()
            if batch is _End:
                return
            try:
                relaxed = _relaxed(self._spec, batch)
            except KerasdistError as error:
                self.error = error
                return
            if relaxed is not None:
                self._pending.append(batch)
                self._relaxed = relaxed
                return
            yield batch


def _put(into: queue.Queue, item: Any, stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            into.put(item, timeout=_POLL_SECONDS)
            return True
        except queue.Full:
            continue
    return False
