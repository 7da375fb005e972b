"""A few steps with one batch size: how fast they are, and how much memory they take."""

from __future__ import annotations

import dataclasses

import tensorflow as tf

from kerasdist.data.streams import open_stream
from kerasdist.devices import private_tensorflow
from kerasdist.devices.placement import Placement
from kerasdist.errors import OutOfMemoryError
from kerasdist.finders import host_memory
from kerasdist.finders.batch_search import Trial
from kerasdist.finders.speed import speed
from kerasdist.finders.steps import steps_of
from kerasdist.training.options import TrainingOptions

NOTE_FULL = "does not fit"
# For a stream of unknown length.
UNKNOWN = 2**30


def attempt(
    options: TrainingOptions, placement: Placement, batch_size: int | None, seconds: float
) -> Trial:
    """Trains with a batch size for about `seconds`, after a warm-up.

    Without a `batch_size`, the data has batches already.
    """
    if batch_size is not None:
        data = dataclasses.replace(options.data, batch_size=batch_size)
        options = dataclasses.replace(options, data=data)
    host_memory.reset_peak()
    for name in placement.names if placement.is_gpu else ():
        tf.config.experimental.reset_memory_stats(name)
    try:
        with steps_of(options, placement) as steps:
            size = batch_size or steps.batch_size or 0
            rate = speed(steps, size, seconds)
    except OutOfMemoryError:
        return Trial(batch_size or 0, fits=False, note=NOTE_FULL)
    # Of a whole batch: the last batch of a pass is often smaller.
    return Trial(size, True, rate, size / rate if rate else None, peak(placement))


def num_examples(options: TrainingOptions, batch_size: int) -> int:
    """How many examples a pass has: no batch is larger."""
    if options.data.batch_size is None and hasattr(options.data.data, "get_batch_data"):
        return UNKNOWN  # A provider, which makes the batches itself.
    stream = open_stream(options.data.data, batch_size=batch_size)
    try:
        count = stream.num_examples
        if count is None and stream.num_batches is not None:
            count = stream.num_batches * batch_size
        return count or UNKNOWN
    finally:
        stream.close()


def peak(placement: Placement) -> int:
    """The most bytes in use: on the fullest GPU, or of this process."""
    if not placement.is_gpu:
        return host_memory.peak()
    return max(tf.config.experimental.get_memory_info(n)["peak"] for n in placement.names)


def memory_limit(placement: Placement) -> int | None:
    """The bytes that TensorFlow may use of the smallest GPU; None on CPUs."""
    if not placement.is_gpu:
        return None
    limits = private_tensorflow.memory_limits()
    return min((limits[n] for n in placement.names if limits.get(n)), default=None)
