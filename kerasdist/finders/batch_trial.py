"""A few steps with one batch size: how fast they are, and how much memory they take."""

from __future__ import annotations

import dataclasses
import time

import tensorflow as tf

from kerasdist.data.streams import open_stream
from kerasdist.devices import private_tensorflow
from kerasdist.devices.placement import Placement
from kerasdist.engine.compiled_loop import NOT_FINITE
from kerasdist.errors import OutOfMemoryError
from kerasdist.finders import host_memory
from kerasdist.finders.batch_search import Trial
from kerasdist.finders.steps import Steps, steps_of
from kerasdist.training.options import TrainingOptions

# The fastest of so many rounds counts: other programs only make rounds slower.
_ROUNDS = 3
NOTE_FULL = "does not fit"
# For a stream of unknown length.
UNKNOWN = 2**30


def attempt(
    options: TrainingOptions, placement: Placement, batch_size: int | None, seconds: float
) -> Trial:
    """Trains with a batch size for about `seconds`, after a step that compiles.

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
            rate = _speed(steps, size, seconds)
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


def _speed(steps: Steps, batch_size: int, seconds: float) -> float:
    """Examples per second."""
    _timed(steps, 1, batch_size)  # Compiles.
    rate = _timed(steps, 1, batch_size)
    count = int(seconds / _ROUNDS * rate / max(1, batch_size))
    rounds = _ROUNDS if count else 0
    return max([rate, *(_timed(steps, count, batch_size) for _ in range(rounds))])


def _timed(steps: Steps, count: int, batch_size: int) -> float:
    began, done, examples = time.perf_counter(), 0, 0
    while done < count:
        outcome = steps.run(count - done)
        done += outcome.num_steps
        examples += outcome.num_examples
        if outcome.status == NOT_FINITE:  # Its weights do not matter here, only its time.
            steps.skip()
            done, examples = done + 1, examples + batch_size
        elif not outcome.num_steps:
            break  # The data can be read only once.
    return examples / max(time.perf_counter() - began, 1e-9)
