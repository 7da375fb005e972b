"""Many steps in one compiled call: the loop over the host's iterator."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

# A call of the compiled loop lasts about this long: signals, logs and callbacks wait for its end.
SECONDS_PER_CALL = 0.5
# How a call ended.
REACHED, END_OF_DATA, NOT_FINITE = 0, 1, 2


def compiled(function: Callable) -> Any:
    # Batches of many sizes given to predict: the second one makes the size unknown.
    made = tf.function(function, autograph=False, reduce_retracing=True)
    # One function an engine is meant: TensorFlow would warn from the fifth fit of a process on.
    made._omit_frequent_tracing_warning = True
    return made


def over_batches(iterator, num_steps, run: Callable, *, times_input: bool = False) -> tuple:
    """`run(batch)` for batch after batch: counts of steps and examples, and the last results.

    The last of the results is for how many seconds batches were waited for, if `times_input`: which
    takes 2 to 4 microseconds a step (CPU, TF 2.21), 1 to 2% of the smallest steps. Else it is NaN.
    """

    def more(step, examples, status, loss, flags, *waited):
        return tf.logical_and(status == REACHED, step < num_steps)

    def body(step, examples, status, loss, flags, *waited):
        # Nothing else of the loop is under way then: iterations are not run in parallel.
        before = [tf.timestamp() for _ in waited]
        with tf.control_dependencies(before):
            optional = iterator.get_next_as_optional()
        is_there = optional.has_value()
        with tf.control_dependencies([is_there]):
            after = [tf.timestamp() for _ in waited]
        waited = [w + (a - b) for w, a, b in zip(waited, after, before, strict=True)]

        def one():
            result, count, new_loss, new_flags = run(optional.get_value())
            # The counter waits for the update: no step is counted that was not written.
            with tf.control_dependencies([result]):
                done = tf.cast(tf.equal(result, REACHED), tf.int64)
            return step + done, examples + done * count, result, new_loss, new_flags

        def none():
            return step, examples, tf.constant(END_OF_DATA), loss, flags

        return (*tf.cond(is_there, one, none), *waited)

    zero, real_zero = tf.constant(0, tf.int64), tf.constant(0.0, tf.float64)
    start: tuple = (zero, zero, tf.constant(REACHED), real_zero, tf.ones((0, 0), tf.bool))
    scalar = tf.TensorShape([])
    shapes: tuple = (scalar, scalar, scalar, scalar, tf.TensorShape([None, None]))
    if times_input:
        start, shapes = (*start, real_zero), (*shapes, scalar)
    results = tf.while_loop(more, body, start, shape_invariants=shapes, parallel_iterations=1)
    return results if times_input else (*results, tf.constant(math.nan, tf.float64))


def last_learning_rate(optimizer, owners: Sequence, values: Sequence) -> tf.Tensor:
    """What the last step used, from the `values` that the optimizer's variables have after it."""
    mapping = [
        (owner, tf.maximum(value, 1) - 1 if owner is optimizer.iterations else value)
        for owner, value in zip(owners, values, strict=True)
    ]
    with keras.StatelessScope(mapping):
        return tf.cast(keras.ops.convert_to_tensor(optimizer.learning_rate), tf.float64)
