"""From a stream to an iterator the compiled loop reads: checks, augmentation, reading ahead."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from kerasdist.data.arrays import own_rows
from kerasdist.data.streams import Stream
from kerasdist.devices.placement import Share
from kerasdist.errors import KerasdistError
from kerasdist.models.fields import fields_read, has_unread, only_read, targets_read
from kerasdist.models.inspection import check_shapes
from kerasdist.models.value_checks import (
    Labels,
    label_message,
    not_finite_message,
    sizes_message,
)

_MARK = "kerasdist-check:"


@dataclass(frozen=True)
class Preparation:
    """What happens to batches on the host: `(dataset, epoch, position) -> dataset`."""

    apply: Callable[[tf.data.Dataset, int, int], tf.data.Dataset]
    is_nothing: bool  # but reading ahead

    def __call__(self, dataset: tf.data.Dataset, epoch: int, position: int) -> tf.data.Dataset:
        return self.apply(dataset, epoch, position)


class Feed:
    """An iterator over a stream, pass after pass, from any batch of any pass.

    With `takes_rows` the loop may take small batches by itself: not where they travel to a GPU.
    """

    def __init__(
        self,
        stream: Stream,
        *,
        prepare: Preparation,
        name: str = "data",
        takes_rows: bool = False,
    ):
        self.stream = stream
        self._prepare = prepare
        self.name = name
        self._takes_rows = takes_rows and prepare.is_nothing
        self._iterator: Any = None
        self._goes_on = False
        self.epoch = 0
        self.position = 0

    def open(self, epoch: int, position: int = 0) -> None:
        """Goes to a batch of a pass. Nothing is read before the iterator is asked for.

        What cannot be read again goes on where it was, if its pass was not used to the end.
        """
        self.epoch, self.position = epoch, position
        self._goes_on = self.stream.is_forward_only and self._iterator is not None
        if not self._goes_on:
            self._iterator = None

    @property
    def batches(self) -> Any:
        """What the compiled loop reads from the position on: an iterator, or `Rows`."""
        rows = self.stream.rows(self.epoch, self.position) if self._takes_rows else None
        if rows is not None:
            self._iterator = None  # It would be behind.
        return self.iterator if rows is None else rows

    @property
    def iterator(self) -> Any:
        if self._iterator is None:
            dataset = self.stream.open(self.epoch, self.position)
            self._iterator = iter(self._prepare(dataset, self.epoch, self.position))
        return self._iterator

    def advance(self, num_batches: int) -> None:
        """Counts batches that were used. Raises what went wrong in reading a while ago."""
        self.position += num_batches
        self.stream.check()

    def examples_of_batch(self) -> list[int] | None:
        """Which examples the batch at the position holds, where they have numbers."""
        indices = getattr(self.stream, "indices", None)
        return None if indices is None else indices(self.epoch, self.position)

    def is_at_end(self) -> bool:
        """Whether the pass is known to be over before the data says so."""
        return self.stream.num_batches is not None and self.position >= self.stream.num_batches

    def is_over(self) -> bool:
        """At the end of a dataset: whether the pass is over. Raises what went wrong in reading."""
        rest = self.stream.reopen()
        if rest is not None:
            self._iterator = iter(self._prepare(rest, self.epoch, self.position))
            return False
        self._iterator = None
        if self._goes_on and self.position == 0:
            self._goes_on = False  # The last pass had been used up, and nobody had noticed.
            return False
        if self.position == 0:
            raise KerasdistError(
                f"Received `{self.name}` without a batch in pass {self.epoch + 1}. Expected at "
                "least one. A source that can be read only once must be made anew for each epoch: "
                "pass a generator function."
            )
        return True

    def close(self) -> None:
        # The stream first: deleting an iterator waits for its threads, which wait for the stream.
        self.stream.close()
        self._iterator = None


def element_spec(stream: Stream, augment: Callable | None) -> Any:
    """The spec of the batches that the model gets; None if there are none."""
    if augment is not None and not callable(augment):
        raise KerasdistError(
            f"Received `augment={augment!r}`. Expected a function of a batch and a seed. Write "
            "`def augment(batch, seed)`, which returns the batch."
        )
    spec = stream.element_spec
    return None if spec is None else _augmented_spec(spec, with_epoch(augment))


def with_epoch(augment: Callable | None) -> Callable | None:
    """`augment` as a function of a batch, a seed and an epoch, which not every one asks for."""
    if augment is None:
        return None
    try:
        wants_epoch = "epoch" in inspect.signature(augment).parameters
    except (TypeError, ValueError):
        wants_epoch = False

    def whole(batch, seed, epoch):
        return augment(batch, seed, epoch=epoch) if wants_epoch else augment(batch, seed)

    return whole


def first_batch(stream: Stream, augment: Callable | None) -> Any:
    """The first batch as the model gets it; the stream still has it afterwards."""
    batch = stream.first_batch()
    if augment is None:
        return batch
    batch = tf.nest.map_structure(tf.convert_to_tensor, batch)
    zero = tf.constant(0, tf.int64)
    return tf.function(with_epoch(augment))(batch, position_seed(0, 0, zero), zero)


def _augmented_spec(spec: Any, augment: Callable | None) -> Any:
    if augment is None:
        return spec

    @tf.function
    def traced(batch, seed, epoch):
        return augment(batch, seed, epoch)

    seed, epoch = tf.TensorSpec([2], tf.int64), tf.TensorSpec([], tf.int64)
    outputs = traced.get_concrete_function(spec, seed, epoch).structured_outputs
    for tensor in tf.nest.flatten(outputs):
        if tensor is None or not tensor.shape.rank:
            found = tensor if tensor is None else f"a tensor of the shape {tensor.shape}"
            raise KerasdistError(
                f"Received {found} from `augment`. Expected a batch like the one it was given, of "
                "known shapes. Return the batch, and use `tf.ensure_shape` after "
                "`tf.numpy_function`."
            )
    return tf.nest.map_structure(lambda t: tf.TensorSpec(t.shape, t.dtype), outputs)


def preparation(
    model: keras.Model,
    stream: Stream,
    *,
    labels: tuple[Labels, ...],
    name: str,
    augment: Callable | None = None,
    seed: int = 0,
    need_targets: bool = True,
    share: Share | None = None,
    needs_whole: bool = False,
    allow_nan: bool = False,
) -> Preparation:
    """What happens to batches on the host.

    With `share`, a worker's: batches become `(part, span)`, and data that can be read by index is
    read for the part alone, unless `augment` or `needs_whole` asks for the others' rows as well.
    """
    is_part = False
    if share is not None and augment is None and not needs_whole:
        is_part = stream.take_share(share)
    # Data in memory was checked at once, and before anything was compiled.
    check_values = need_targets and not allow_nan
    check = _checker(model, labels, name, check_values) if stream.arrays is None else None
    known = stream.element_spec
    augment = with_epoch(augment)
    # Traced once for all passes.
    check = tf.function(check) if check is not None else None

    @tf.function
    def augmented(number, batch, epoch):
        return augment(batch, position_seed(seed, epoch, number), epoch)

    def prepare(dataset: tf.data.Dataset, epoch: int, position: int) -> tf.data.Dataset:
        nonlocal known
        if dataset.element_spec != known:
            known = dataset.element_spec
            where, sizes = stream.last_change
            for spec in (sizes, known) if need_targets else ():
                check_shapes(model, _augmented_spec(spec, augment), where)
        if check is not None:
            # In turn for a reader's batches: each parallel call would take one out of its buffer.
            parallel = None if stream.read_ahead == 1 else tf.data.AUTOTUNE
            dataset = _numbered(dataset, position).map(check, num_parallel_calls=parallel)
        if augment is not None:
            place = tf.constant(epoch, tf.int64)
            dataset = _numbered(dataset, position).map(
                lambda number, batch: augmented(number, batch, place),
                num_parallel_calls=tf.data.AUTOTUNE,
            )
        if has_unread(model, dataset.element_spec):
            # Devices need not hold what nobody reads, and cannot hold strings.
            dataset = dataset.map(lambda *batch: only_read(model, *batch))
        if share is not None and is_part:
            size, total = stream.batch_size, stream.num_examples  # type: ignore[attr-defined]
            dataset = _numbered(dataset, position).map(
                lambda number, part: (part, _span(share, tf.minimum(total - number * size, size)))
            )
        elif share is not None:
            # A tuple of one position stays one: its `x` may be a tuple of several inputs.
            is_bare = not isinstance(dataset.element_spec, tuple)
            dataset = dataset.map(
                lambda *batch: _part(share, batch[0] if is_bare else batch, needs_whole)
            )
        return _without_tuning(dataset.prefetch(stream.read_ahead))

    is_changed = check is not None or augment is not None or share is not None
    return Preparation(prepare, not is_changed and not has_unread(model, known))


def _without_tuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Without tf.data's tuning of `AUTOTUNE`, unless the dataset's own options ask for it.

    Then as many calls run in parallel as there are cores (tried with two). Deleting a tuned
    iterator often waits until its tuning thread wakes up by itself, after 0.3, 0.6, 1.3, 2.6 ...
    seconds of its life: at the end of a pass, and for up to as long as that took (TF 2.21).
    """
    if dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


@tf.autograph.experimental.do_not_convert
def _part(share: Share, batch: Any, is_whole: bool) -> tuple[Any, tf.Tensor]:
    """A worker's rows of a batch, or all of them, and the span."""
    count = tf.shape(tf.nest.flatten(batch)[0], out_type=tf.int64)[0]
    if is_whole:
        return batch, tf.stack([count, 0])
    zero = tf.constant(0, tf.int64)
    first, end = own_rows(share, zero, count)
    return tf.nest.map_structure(lambda t: t[first:end], batch), _span(share, count)


def _span(share: Share, count: tf.Tensor) -> tf.Tensor:
    """The size of a batch, and the first row of a worker's part."""
    first, _ = own_rows(share, tf.constant(0, tf.int64), count)
    return tf.stack([tf.cast(count, tf.int64), first])


def _numbered(dataset: tf.data.Dataset, first: int) -> tf.data.Dataset:
    return tf.data.Dataset.zip(tf.data.Dataset.range(first, tf.int64.max), dataset)


@tf.autograph.experimental.do_not_convert
def position_seed(seed: int, epoch: Any, number: tf.Tensor) -> tf.Tensor:
    """A seed for the stateless random functions: a function of (seed, global position)."""
    of_pass = tf.random.stateless_uniform(
        (2,),
        tf.stack([tf.constant(seed, tf.int64), tf.cast(epoch, tf.int64)]),
        minval=0,
        maxval=2**31 - 1,
        dtype=tf.int64,
        alg="philox",
    )
    return tf.random.stateless_uniform(
        (2,),
        of_pass + tf.stack([tf.cast(number, tf.int64), tf.constant(0, tf.int64)]),
        minval=0,
        maxval=2**31 - 1,
        dtype=tf.int64,
        alg="philox",
    )


def _checker(model: keras.Model, labels: tuple[Labels, ...], name: str, check_values: bool):
    @tf.autograph.experimental.do_not_convert
    def check(number, batch):
        place = "batch {} (from 0)"
        checks = []
        fields = fields_read(model, batch)
        if fields:
            sizes = tf.stack([tf.shape(tensor)[0] for _, tensor in fields])
            is_even = tf.reduce_all((sizes == sizes[0]) & (sizes > 0))
            message = sizes_message(name, ", ".join(path for path, _ in fields), "{}", place)
            checks.append(_assert(is_even, message, (sizes, number)))
        for path, tensor in fields if check_values else ():
            if tensor.dtype.is_floating:
                finite = tf.reduce_all(tf.math.is_finite(tensor))
                message = not_finite_message(name, path, place)
                checks.append(_assert(finite, message, (number,)))
        y = targets_read(model, batch)
        for label in labels if y is not None else ():
            values = tf.cast(label.of(y), tf.int64)
            wrong = (values < 0) | (values >= label.num_classes)
            if label.ignored is not None:
                wrong &= values != label.ignored
            message = label_message(name, label, "{}", place)
            first = tf.reduce_max(tf.where(wrong, values, tf.int64.min))
            checks.append(_assert(tf.logical_not(tf.reduce_any(wrong)), message, (first, number)))
        with tf.control_dependencies(checks):
            return tf.nest.map_structure(tf.identity, batch)

    return check


def _assert(condition, message: str, values: tuple) -> tf.Operation:
    text = tf.strings.format(f"{_MARK}{message}{_MARK}", values)
    return tf.debugging.Assert(condition, [text])


def translate(error: tf.errors.OpError) -> KerasdistError | None:
    """The message of a failed check, if that is what `error` is."""
    found = re.search(f"{_MARK}(.*?){_MARK}", str(error), re.DOTALL)
    return KerasdistError(found[1]) if found else None
