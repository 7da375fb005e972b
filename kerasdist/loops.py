"""Many steps in one compiled call: the loop over the host's iterator."""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

# How a call ended.
REACHED, END_OF_DATA, NOT_FINITE = 0, 1, 2


def over_batches(iterator, num_steps, run: Callable) -> tuple:
    """`run(batch)` for batch after batch: counts of steps and examples, and the last results."""

    def more(step, examples, status, loss, flags):
        return tf.logical_and(status == REACHED, step < num_steps)

    def body(step, examples, status, loss, flags):
        optional = iterator.get_next_as_optional()

        def one():
            result, count, new_loss, new_flags = run(optional.get_value())
            # The counter waits for the update: no step is counted that was not written.
            with tf.control_dependencies([result]):
                done = tf.cast(tf.equal(result, REACHED), tf.int64)
            return step + done, examples + done * count, result, new_loss, new_flags

        def none():
            return step, examples, tf.constant(END_OF_DATA), loss, flags

        return tf.cond(optional.has_value(), one, none)

    zero = tf.constant(0, tf.int64)
    start = (
        zero,
        zero,
        tf.constant(REACHED),
        tf.constant(0.0, tf.float64),
        tf.ones((0, 0), tf.bool),
    )
    scalar = tf.TensorShape([])
    shapes = (scalar, scalar, scalar, scalar, tf.TensorShape([None, None]))
    return tf.while_loop(more, body, start, shape_invariants=shapes, parallel_iterations=1)
