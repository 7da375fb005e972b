"""Many steps in one compiled call: the loop over the host's iterator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import tensorflow as tf

from kerasdist.data.rows import Rows
from kerasdist.devices.private_tensorflow import silence_retracing_warning

# A call of the compiled loop lasts about this long: signals, logs and callbacks wait for its end.
SECONDS_PER_CALL = 0.5
# How a call ended.
REACHED, END_OF_DATA, NOT_FINITE = 0, 1, 2


@dataclass(frozen=True)
class Outcome:
    """What one call of a compiled loop did. `loss` is the last step's.

    After a step that is not finite, `not_finite` names what was not, on the first `replica` where
    anything was not; None if only their sum was not. `seen` is what an observed step saw
    (`observing`). For `waited` seconds batches were waited for; `learning_rate` is of the step done
    last.
    """

    num_steps: int
    num_examples: int
    status: int
    loss: float
    not_finite: tuple[str, ...] = ()
    replica: int | None = None
    seen: Any = None
    waited: float = math.nan
    learning_rate: float = math.nan


def compiled(function: Callable) -> Any:
    # Batches of many sizes given to predict: the second one makes the size unknown.
    made = tf.function(function, autograph=False, reduce_retracing=True)
    # One function an engine is meant: TensorFlow would warn from the fifth fit of a process on.
    silence_retracing_warning(made)
    return made


def next_batch(batches: Any) -> Any | None:
    """What `first_of` takes the next batch from, in a compiled function; None if there is none.

    Of `Rows`, not the batch itself: with its size known, constants would be folded into other bits.
    """
    if isinstance(batches, Rows):
        return batches if batches.position < batches.num_batches else None
    optional = batches.get_next_as_optional()
    return optional if optional.has_value() else None


def first_of(found: Any) -> Any:
    return found.batch(found.position) if isinstance(found, Rows) else found.get_value()


def over_batches(source, num_steps, run: Callable, *, times_input: bool = False) -> tuple:
    """`run(batch)` for batch after batch: counts of steps and examples, and the last results.

    `source` is an iterator, or `Rows`.

    The last of the results is for how many seconds batches were waited for, if `times_input`: which
    takes 2 to 4 microseconds a step (CPU, TF 2.21), 1 to 2% of the smallest steps. Else it is NaN.
    """

    def after(step, examples, batch):
        status, count, loss, flags = run(batch)
        # The counter waits for the update: no step is counted that was not written.
        with tf.control_dependencies([status]):
            done = tf.cast(tf.equal(status, REACHED), tf.int64)
        return step + done, examples + done * count, status, loss, flags

    zero, real_zero = tf.constant(0, tf.int64), tf.constant(0.0, tf.float64)
    start = (zero, zero, tf.constant(REACHED), real_zero, tf.ones((0, 0), tf.bool))
    scalar = tf.TensorShape([])
    shapes = (scalar, scalar, scalar, scalar, tf.TensorShape([None, None]))
    over = _over_rows if isinstance(source, Rows) else _over_iterator
    *results, waited = over(source, num_steps, after, (start, shapes), times_input)
    step, examples, status, loss, flags = results
    is_over = tf.logical_and(status == REACHED, step < num_steps)
    return step, examples, tf.where(is_over, END_OF_DATA, status), loss, flags, waited


def _over_rows(rows: Rows, num_steps, after: Callable, start_and_shapes, times_input: bool):
    (step, *start), shapes = start_and_shapes
    end = tf.minimum(rows.position + num_steps, rows.num_batches)
    number, *results = tf.while_loop(
        lambda number, examples, status, *_: tf.logical_and(status == REACHED, number < end),
        lambda number, examples, *_: after(number, examples, rows.batch(number)),
        (rows.position + step, *start),
        shape_invariants=shapes,
        parallel_iterations=1,
    )
    # Taking them is a part of the step, not waiting.
    return number - rows.position, *results, tf.constant(0.0, tf.float64)


def _over_iterator(iterator, num_steps, after: Callable, start_and_shapes, times_input: bool):
    start, shapes = start_and_shapes

    def fetch(is_wanted) -> tuple[Any, list]:
        # Nothing else of the loop is under way then: iterations are not run in parallel.
        with tf.control_dependencies([is_wanted]):
            before = [tf.timestamp()] if times_input else []
        # A control dependency would not hold back the branch of a lowered `tf.cond`.
        for timestamp in before:
            is_wanted = tf.logical_and(is_wanted, timestamp > 0)
        optional = tf.cond(
            is_wanted,
            iterator.get_next_as_optional,
            lambda: tf.experimental.Optional.empty(iterator.element_spec),
        )
        with tf.control_dependencies([optional.has_value()] if times_input else []):
            return optional, [tf.timestamp() - b for b in before]

    def more(step, examples, status, loss, flags, optional, *_):
        is_wanted = tf.logical_and(status == REACHED, step < num_steps)
        return tf.logical_and(is_wanted, optional.has_value())

    def body(step, examples, status, loss, flags, optional, *waited):
        # Not in a `tf.cond`: each tensor and variable that a branch uses costs an operation.
        results = after(step, examples, optional.get_value())
        step, _, status, *_ = results
        # No batch is taken that this call does not use.
        optional, more = fetch(tf.logical_and(status == REACHED, step < num_steps))
        return (*results, optional, *[w + m for w, m in zip(waited, more, strict=True)])

    first, waited = fetch(num_steps > 0)
    results = tf.while_loop(
        more,
        body,
        (*start, first, *waited),
        shape_invariants=(*shapes, tf.type_spec_from_value(first), *[w.shape for w in waited]),
        parallel_iterations=1,
    )
    seconds = results[-1] if times_input else tf.constant(math.nan, tf.float64)
    return *results[: len(start)], seconds


def last_learning_rate(optimizer, owners: Sequence, values: Sequence) -> tf.Tensor:
    """What the last step used, from the `values` that the optimizer's variables have after it."""
    mapping = [
        (owner, tf.maximum(value, 1) - 1 if owner is optimizer.iterations else value)
        for owner, value in zip(owners, values, strict=True)
    ]
    with keras.StatelessScope(mapping):
        return tf.cast(keras.ops.convert_to_tensor(optimizer.learning_rate), tf.float64)
