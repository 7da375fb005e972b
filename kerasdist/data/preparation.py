"""Prepares batches on the host: checks, augmentation, a worker's part, reading ahead."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import cast

import keras
import tensorflow as tf

from kerasdist.data.augmentation import Augment, augmented_spec, position_seed, with_epoch
from kerasdist.data.batches import Batch
from kerasdist.data.forms.arrays import ArrayStream
from kerasdist.data.order import own_rows
from kerasdist.data.streams import Stream
from kerasdist.data.values import checker
from kerasdist.devices.placement import Share
from kerasdist.models.fields import has_unread, only_read
from kerasdist.models.inspection import check_shapes
from kerasdist.models.tensors.composites import count_rows, rows_of
from kerasdist.models.value_checks import AllowNan, Labels


@dataclass(frozen=True)
class Preparation:
    """A function of a stream's dataset, an epoch and the number of the dataset's first batch."""

    apply: Callable[[tf.data.Dataset, int, int], tf.data.Dataset]
    only_reads_ahead: bool  # Batches stay as they are.

    def __call__(self, dataset: tf.data.Dataset, epoch: int, position: int) -> tf.data.Dataset:
        return self.apply(dataset, epoch, position)


def preparation(
    model: keras.Model,
    stream: Stream,
    *,
    labels: Sequence[Labels],
    name: str,
    augment: Augment | None = None,
    seed: int = 0,
    need_targets: bool = True,
    share: Share | None = None,
    needs_whole: bool = False,
    allow_nan: AllowNan = False,
    is_cut: bool = True,
) -> Preparation:
    """Makes the preparation of a stream's batches.

    With `share`, batches become a worker's `(part, span)`. Data that can be read by index is then
    read for this part alone, unless `augment` or `needs_whole` needs the rows of all workers.
    If batches are not cut (`is_cut`), their fields may have different numbers of examples.
    """
    is_part = False
    if share is not None and augment is None and not needs_whole:
        is_part = stream.take_share(share)
    check = None
    # Data in memory was checked as a whole, before anything was compiled.
    if stream.arrays is None:
        # Traced once for all passes.
        nan = allow_nan or not need_targets
        check = tf.function(checker(model, labels, name, allow_nan=nan, is_cut=is_cut))
    known = stream.element_spec
    augment = None if augment is None else with_epoch(augment)
    augmented = None if augment is None else _augmentation(augment, seed)

    def prepare(dataset: tf.data.Dataset, epoch: int, position: int) -> tf.data.Dataset:
        nonlocal known
        if dataset.element_spec != known:
            known = dataset.element_spec
            where, sizes = stream.last_change
            for spec in (sizes, known) if need_targets else ():
                spec = spec if augment is None else augmented_spec(spec, augment)
                check_shapes(model, spec, where)
        if check is not None:
            # One call at a time for a reader's batches: each parallel call would take a batch out
            # of the reader's buffer.
            parallel = None if stream.read_ahead == 1 else tf.data.AUTOTUNE
            dataset = _numbered(dataset, position).map(check, num_parallel_calls=parallel)
        if augmented is not None:
            place = tf.constant(epoch, tf.int64)
            dataset = _numbered(dataset, position).map(
                lambda number, batch: augmented(number, batch, place),
                num_parallel_calls=tf.data.AUTOTUNE,
            )
        if has_unread(model, dataset.element_spec):
            # Devices need not hold fields that the model does not read, and cannot hold strings.
            dataset = dataset.map(lambda *batch: only_read(model, *batch))
        if share is not None and is_part:
            dataset = _with_spans(dataset, position, stream, share)
        elif share is not None:
            dataset = _parts(dataset, share, needs_whole)
        return _without_tuning(dataset.prefetch(stream.read_ahead))

    if isinstance(stream, ArrayStream) and has_unread(model, known):
        stream.keep_fields(lambda arrays: only_read(model, arrays))
    is_unread = has_unread(model, known) and not isinstance(stream, ArrayStream)
    is_changed = check is not None or augment is not None or share is not None or is_unread
    return Preparation(prepare, only_reads_ahead=not is_changed)


def _augmentation(augment: Augment, seed: int) -> Callable[[tf.Tensor, Batch, tf.Tensor], Batch]:
    """A compiled function of number, batch and epoch, traced once for all passes."""
    # AutoGraph is for the user's function alone.
    seed_at = tf.autograph.experimental.do_not_convert(position_seed)

    def augmented(number: tf.Tensor, batch: Batch, epoch: tf.Tensor) -> Batch:
        return augment(batch, seed_at(seed, epoch, number), epoch)

    return tf.function(augmented)


def _with_spans(
    dataset: tf.data.Dataset, position: int, stream: Stream, share: Share
) -> tf.data.Dataset:
    """Adds the span to batches that have the worker's rows only."""
    # A stream that reads a share knows its sizes.
    size, total = cast(int, stream.batch_size), cast(int, stream.num_examples)
    return _numbered(dataset, position).map(
        lambda number, part: (part, _span(share, tf.minimum(total - number * size, size)))
    )


def _parts(dataset: tf.data.Dataset, share: Share, needs_whole: bool) -> tf.data.Dataset:
    """Cuts the worker's rows out of whole batches, and adds the span."""
    # A tuple of one position stays a tuple: its `x` may be a tuple of several inputs.
    is_bare = not isinstance(dataset.element_spec, tuple)
    cut = tf.autograph.experimental.do_not_convert(part_of)
    return dataset.map(lambda *batch: cut(share, batch[0] if is_bare else batch, needs_whole))


def _without_tuning(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Turns off tf.data's tuning of `AUTOTUNE`, unless the dataset's options ask for it.

    Without tuning, one call runs per core (tried with two). With it, deleting an iterator at the
    end of a pass often waits for the tuning thread, which wakes up 0.3, 0.6, 1.3, 2.6 ... seconds
    after it started (TF 2.21).
    """
    if dataset.options().autotune.enabled is not None:
        return dataset
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)


def part_of(share: Share, batch: Batch, is_whole: bool) -> tuple[Batch, tf.Tensor]:
    """A worker's rows of a batch, or with `is_whole` all of them, and the span."""
    count = count_rows(tf.nest.flatten(batch)[0])
    if is_whole:
        return batch, tf.stack([count, 0])
    zero = tf.constant(0, tf.int64)
    first, end = own_rows(share, zero, count)
    return tf.nest.map_structure(lambda t: rows_of(t, first, end), batch), _span(share, count)


def _span(share: Share, count: tf.Tensor) -> tf.Tensor:
    """The size of a batch, and the first row of the worker's part."""
    first, _ = own_rows(share, tf.constant(0, tf.int64), count)
    return tf.stack([tf.cast(count, tf.int64), first])


def _numbered(dataset: tf.data.Dataset, first: int) -> tf.data.Dataset:
    return tf.data.Dataset.zip(tf.data.Dataset.range(first, tf.int64.max), dataset)
