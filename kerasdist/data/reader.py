"""Reading batches with Python in the background: what Coordinator and QueueRunner did.

A bounded buffer, the source's exception in the caller with its traceback, and no thread left over.
"""

from __future__ import annotations

import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kerasdist.errors import KerasdistError

# How long batches read before a failure are still used. Then it ends the pass: steps may be slow.
_GRACE_SECONDS = 0.25
_PATIENCE_SECONDS = 5.0

_END: Any = object()


def as_arrays(batch: Any, where: str = "`data`") -> Any:
    """A batch with arrays for leaves; floats in Keras's float type, as Keras's own fit does."""
    if isinstance(batch, (tuple, list)):
        while len(batch) > 1 and batch[-1] is None:  # Keras's habit: (x, y, None)
            batch = batch[:-1]
    return _as_arrays(batch, where, ())


def _as_arrays(value: Any, where: str, path: tuple) -> Any:
    if isinstance(value, Mapping):
        return {key: _as_arrays(item, where, (*path, key)) for key, item in value.items()}
    # A list of arrays is several fields, as in Keras; a list of numbers or lists is one array.
    if isinstance(value, tuple) or (
        isinstance(value, list) and any(len(getattr(item, "shape", ())) for item in value)
    ):
        return tuple(_as_arrays(item, where, (*path, i)) for i, item in enumerate(value))
    return _as_array(value, where, path)


def _as_array(value: Any, where: str, path: tuple) -> np.ndarray:
    if path:
        where = f"{where} ({'/'.join(str(key) for key in path)})"
    try:
        array = np.asarray(value)
    except ValueError:
        raise KerasdistError(
            f"Received rows of different lengths in {where}. Expected an array: the same length in "
            "all. Fill up the shorter ones, for example with `keras.utils.pad_sequences`."
        ) from None
    if array.dtype.kind == "f" and array.dtype.itemsize != 2:
        return array.astype(keras.config.floatx(), copy=False)
    if array.dtype.kind == "O":
        # Strings pass: where they are features they are refused by name, elsewhere nobody looks.
        odd = [v for v in array.flat if not isinstance(v, (str, bytes))]
        found = type(odd[0]).__name__ if odd else None
    else:
        found = None if _is_known(array.dtype) else str(array.dtype)
    if found is not None:
        raise KerasdistError(
            f"Received values of the type {found} in {where}. Expected numbers. Convert them to an "
            "array of numbers, or leave the field out."
        )
    return array


def _is_known(dtype: np.dtype) -> bool:
    try:
        return bool(tf.as_dtype(dtype))
    except TypeError:
        return False


def check_rows(arrays: Any, where: str = "`data`") -> int:
    """The number of examples, which all arrays must agree on."""
    sizes = {len(a) if a.ndim else -1 for a in tf.nest.flatten(arrays)}
    if len(sizes) != 1 or -1 in sizes:
        shapes = tf.nest.map_structure(lambda a: a.shape, arrays)
        raise KerasdistError(
            f"Received {where} with arrays of shapes {shapes}. Expected the same first dimension, "
            "the number of examples, in all. Cut them to one length."
        )
    (size,) = sizes
    if size == 0:
        raise KerasdistError(
            f"Received {where} with 0 examples. Expected at least one. Check how it was read."
        )
    return size


def spec_of(batch: Any) -> Any:
    """The spec of batches like this one, of any number of examples."""
    return tf.nest.map_structure(
        lambda array: tf.TensorSpec([None, *array.shape[1:]], _dtype(array)), batch
    )


def _dtype(array: np.ndarray) -> tf.DType:
    return tf.string if array.dtype.kind in "OUS" else tf.as_dtype(array.dtype)


def _relaxed(spec: Any, batch: Any, where: str) -> Any | None:
    """None if `batch` fits `spec`, else `spec` with None for each dimension that differs."""
    try:
        tf.nest.assert_same_structure(spec, batch)
    except (ValueError, TypeError):
        raise KerasdistError(
            f"Received {_fields(batch)} in {where} after {_fields(spec)}. Expected the same fields "
            "in every batch. Yield all fields always."
        ) from None
    changed = False

    def leaf(own: tf.TensorSpec, array: np.ndarray) -> tf.TensorSpec:
        nonlocal changed
        if len(array.shape) != own.shape.rank:
            raise KerasdistError(
                f"Received an array of shape {array.shape} in {where} after one of shape "
                f"{tuple(own.shape)}. Expected as many dimensions in every batch. Reshape it."
            )
        if own.dtype != _dtype(array):
            raise KerasdistError(
                f"Received an array of type {array.dtype} in {where} after one of type "
                f"{own.dtype.name}. Expected the same type in every batch. Cast it."
            )
        if own.shape.is_compatible_with(array.shape):
            return own
        changed = True
        sizes = [a if a == b else None for a, b in zip(own.shape, array.shape, strict=True)]
        return tf.TensorSpec(sizes, own.dtype)

    relaxed = tf.nest.map_structure(leaf, spec, batch)
    return relaxed if changed else None


def _fields(structure: Any) -> str:
    if isinstance(structure, Mapping):
        return f"the fields {sorted(structure, key=str)}"
    return f"{len(structure)} positions" if isinstance(structure, tuple) else "one array"


class _Pass:
    """One pass over a source: the buffer between the threads that read and the one that uses.

    A slot is reserved before a batch is read, so that the source is never more than `capacity`
    batches ahead: one until the first batch is used, while the step is still being compiled.
    """

    def __init__(self, capacity: int, num_threads: int, start: int):
        self._capacity = capacity
        self._batches: deque = deque()
        self._num_reserved = 0
        self._num_reading = num_threads
        self._is_closed = False
        self._is_ending = False
        self._failure: BaseException | None = None
        self._failed_at = 0.0
        self._change = threading.Condition()
        self.is_used = False
        self.number = start  # of the batch at the front
        self.num_read = 0
        self.num_to_skip = 0
        self.relaxed: Any = None
        self.threads: list[threading.Thread] = []

    def reserve(self) -> bool:
        """Waits for a slot; False when nothing more is to be read."""

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

    def put(self, batch: Any) -> None:
        with self._change:
            self._num_reserved -= 1
            self.num_read += 1
            self._batches.append(batch)
            self._change.notify_all()

    def finish(self, failure: BaseException | None) -> None:
        """A thread has read its last batch. What the others are reading still counts."""
        with self._change:
            self._is_ending = True
            self._num_reading -= 1
            if failure is not None and self._failure is None:
                self._failure, self._failed_at = failure, time.monotonic()
            self._change.notify_all()

    def peek(self, *, use: bool = True) -> Any:
        """Waits for the next batch and leaves it there; `_END` at the end."""
        with self._change:
            if use and not self.is_used:
                self.is_used = True
                self._change.notify_all()
            self._change.wait_for(
                lambda: self._batches or self._is_closed or not self._num_reading or self._failure
            )
            if self._is_closed or self._is_overdue() or not self._batches:
                return _END
            return self._batches[0]

    def pop(self) -> None:
        with self._change:
            if self._batches:  # Else it was closed meanwhile.
                self._batches.popleft()
                self.number += 1
                self._change.notify_all()

    def _is_overdue(self) -> bool:
        return self._failure is not None and time.monotonic() - self._failed_at > _GRACE_SECONDS

    def fail(self, failure: BaseException) -> None:
        """Something is wrong with the batch at the front."""
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
                    f"Waiting for the thread {thread.name!r}, which is still reading a batch. "
                    "Expected it within seconds. Ctrl-C leaves it behind; see what it waits for.",
                    stacklevel=2,
                )
                thread.join()
        self.threads = []


class Reader:
    """Runs a source in the background and offers its passes as `tf.data.Dataset`s.

    The source is `make_batches(epoch, start)`, which makes a pass anew, or `read()`, which ends a
    pass with None, `StopIteration` or `OutOfRangeError` and begins the next when called again.

    The shapes of the first batch hold until a batch differs in a dimension; that one ends the
    dataset, and `reopen` goes on with that dimension unknown: a new shape is compiled for once, not
    for every length.
    """

    def __init__(
        self,
        make_batches: Callable[[int, int], Iterator[Any]] | None = None,
        *,
        read: Callable[[], Any] | None = None,
        num_threads: int = 1,
        capacity: int = 8,
        name: str = "data",
    ):
        self._make_batches = make_batches
        self._read = read
        self._num_threads = num_threads
        self._capacity = capacity
        self._name = name
        self._pass: _Pass | None = None
        self._opened: tuple[int, int] | None = None
        self._spec: Any = None
        self.last_change: tuple[str, Any] = ("", None)

    def first_batch(self) -> Any:
        """The first batch, None if there is none. It is read, and kept for the first pass."""
        current = self._pass or self._start(0, 0)
        first = current.peek(use=False)
        if first is not _END:
            return first
        current.raise_failure()
        return None

    @property
    def element_spec(self) -> Any:
        """The spec of the batches, None if there are none."""
        if self._spec is None:
            first = self.first_batch()
            self._spec = None if first is None else spec_of(first)
        return self._spec

    def open(self, epoch: int, start: int) -> tf.data.Dataset:
        """The batches of a pass from batch `start` on."""
        if self.element_spec is None:
            raise KerasdistError(
                f"Received `{self._name}` without a single batch. Expected at least one. Check how "
                "it is read."
            )
        current = self._pass
        # What was read to look at its shapes cannot be read again by `read`.
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
        """Raises what went wrong in reading, unless batches from before it may still be used."""
        if self._pass is not None:
            self._pass.raise_failure(if_overdue=True)

    def close(self) -> None:
        """Ends the background threads and waits for them."""
        if self._pass is not None:
            self._pass.close()
            self._pass = None

    def _dataset(self, current: _Pass) -> tf.data.Dataset:
        # TensorFlow keeps this function for ever (2.21): weak, or it would keep the data as well.
        # Bound to this pass: an iterator of an earlier one that is still alive must not read it.
        weak_self, weak_pass = weakref.ref(self), weakref.ref(current)

        def batches() -> Iterator[Any]:
            reader, pass_ = weak_self(), weak_pass()
            return iter(()) if reader is None or pass_ is None else reader._batches(pass_)

        return tf.data.Dataset.from_generator(batches, output_signature=self._spec)

    def _start(self, epoch: int, start: int) -> _Pass:
        self.close()
        current = self._pass = _Pass(self._capacity, self._num_threads, start)
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

    def _fill(self, current: _Pass, epoch: int, start: int) -> None:
        failure: BaseException | None = None
        try:
            batches = self._make_batches(epoch, start) if self._make_batches else self._reads()
            first = start if self._read is None else 0
            while current.reserve():
                batch = next(batches, _END)
                if batch is _END:
                    break
                where = self._where(first + current.num_read)
                arrays = as_arrays(batch, where)
                check_rows(arrays, where)
                current.put(arrays)
            if isinstance(batches, Generator):
                batches.close()  # Its own `finally` runs here and now.
        except BaseException as error:  # noqa: BLE001 - handed to the caller, whatever it is
            failure = error
        current.finish(failure)

    def _reads(self) -> Iterator[Any]:
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

    def _batches(self, current: _Pass) -> Iterator[Any]:
        while current.num_to_skip and current.peek() is not _END:
            current.pop()
            current.num_to_skip -= 1
        while (batch := current.peek()) is not _END:
            try:
                relaxed = _relaxed(self._spec, batch, self._where(current.number))
            except KerasdistError as error:
                current.fail(error)
                return
            if relaxed is not None:
                self.last_change = (self._where(current.number), spec_of(batch))
                current.relaxed = relaxed
                return
            current.pop()
            yield batch
