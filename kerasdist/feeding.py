"""From a stream to an iterator the compiled loop reads: checks, augmentation, reading ahead."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from kerasdist.data import Stream
from kerasdist.errors import KerasdistError
from kerasdist.inspection import Labels, label_message, not_finite_message
from kerasdist.models import named_leaves, read

_MARK = "kerasdist-check:"


class Feed:
    """An iterator over a stream, pass after pass, from any batch of any pass."""

    def __init__(
        self,
        stream: Stream,
        *,
        prepare: Callable[[tf.data.Dataset, int, int], tf.data.Dataset],
        name: str = "data",
    ):
        self._stream = stream
        self._prepare = prepare
        self._name = name
        self.epoch = 0
        self.position = 0
        self.iterator: Any = None

    def open(self, epoch: int, position: int = 0) -> None:
        """Goes to a batch of a pass."""
        self.epoch, self.position = epoch, position
        dataset = self._stream.open(epoch, position)
        self.iterator = iter(self._prepare(dataset, epoch, position))

    def advance(self, num_batches: int) -> None:
        self.position += num_batches

    def is_over(self) -> bool:
        """At the end of a dataset: whether the pass is over. Raises what went wrong in reading."""
        rest = self._stream.reopen()
        if rest is not None:
            self.iterator = iter(self._prepare(rest, self.epoch, self.position))
            return False
        if self.position == 0:
            raise KerasdistError(
                f"Received `{self._name}` without a batch in pass {self.epoch + 1}. Expected at "
                "least one. A source that can be read only once must be made anew for each epoch: "
                "pass a generator function."
            )
        return True

    def close(self) -> None:
        # The iterator first: its threads read from the stream.
        self.iterator = None
        self._stream.close()


def preparation(
    model: keras.Model,
    stream: Stream,
    *,
    labels: tuple[Labels, ...],
    name: str,
    augment: Callable | None = None,
    seed: int = 0,
    need_targets: bool = True,
) -> Callable[[tf.data.Dataset, int, int], tf.data.Dataset]:
    """What happens to batches on the host: `(dataset, epoch, position) -> dataset`."""

    def prepare(dataset: tf.data.Dataset, epoch: int, position: int) -> tf.data.Dataset:
        if stream.arrays is None:
            check = _checker(model, labels, name, need_targets)
            numbers = tf.data.Dataset.range(position, tf.int64.max)
            dataset = tf.data.Dataset.zip(numbers, dataset).map(
                check, num_parallel_calls=tf.data.AUTOTUNE
            )
        if augment is not None:
            numbers = tf.data.Dataset.range(position, tf.int64.max)

            def augmented(number, batch):
                return augment(batch, position_seed(seed, epoch, number))

            dataset = tf.data.Dataset.zip(numbers, dataset).map(
                augmented, num_parallel_calls=tf.data.AUTOTUNE
            )
        return dataset.prefetch(tf.data.AUTOTUNE)

    return prepare


def position_seed(seed: int, epoch: int, number: tf.Tensor) -> tf.Tensor:
    """A seed for the stateless random functions: a function of (seed, global position)."""
    of_pass = tf.random.stateless_uniform(
        (2,), [seed, epoch], minval=0, maxval=2**31 - 1, dtype=tf.int64, alg="philox"
    )
    return tf.random.stateless_uniform(
        (2,),
        of_pass + tf.stack([tf.cast(number, tf.int64), tf.constant(0, tf.int64)]),
        minval=0,
        maxval=2**31 - 1,
        dtype=tf.int64,
        alg="philox",
    )


def _checker(model: keras.Model, labels: tuple[Labels, ...], name: str, need_targets: bool):
    def check(number, batch):
        example = read(model, batch, need_targets=need_targets)
        place = "batch {}"
        for role in ("x", "y", "sample_weight"):
            for path, tensor in named_leaves(getattr(example, role)):
                if not tensor.dtype.is_floating:
                    continue
                message = not_finite_message(name, f"{role}/{path}".rstrip("/"), place)
                _assert(tf.reduce_all(tf.math.is_finite(tensor)), message, (number,))
        for label in labels:
            if example.y is None:
                continue
            values = tf.cast(label.of(example.y), tf.int64)
            wrong = (values < 0) | (values >= label.num_classes)
            if label.ignored is not None:
                wrong &= values != label.ignored
            message = label_message(name, label, "{}", place)
            first = tf.reduce_max(tf.where(wrong, values, tf.int64.min))
            _assert(tf.logical_not(tf.reduce_any(wrong)), message, (first, number))
        return batch

    return check


def _assert(condition, message: str, values: tuple) -> None:
    text = tf.strings.format(f"{_MARK}{message}{_MARK}", values)
    tf.debugging.Assert(condition, [text])


def translate(error: tf.errors.OpError) -> KerasdistError | None:
    """The message of a failed check, if that is what `error` is."""
    found = re.search(f"{_MARK}(.*?){_MARK}", str(error), re.DOTALL)
    return KerasdistError(found[1]) if found else None
