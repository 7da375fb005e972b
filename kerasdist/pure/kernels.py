"""Gradients by kernels that are quicker on a CPU. The maths is TensorFlow's, rounding apart."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import control_flow_util

# On a CPU the gradient by a convolution's input takes up to nine times as long as a forward
# convolution of the same size (`benchmarks/kernels.py`); with few input channels it does not.
MIN_CHANNELS = 8

# The gradient of max-pooling looks for each window's largest value again, one by one, in three
# quarters of its time; XLA compiles that search in a fraction of a second. Pays for images of so
# many numbers.
MIN_POOLED = 4096

tensorflow_convolution = tf.nn.convolution
tensorflow_max_pool = tf.nn.max_pool


def convolution(
    input,
    filters,
    strides=None,
    padding="VALID",
    data_format=None,
    dilations=None,
    name=None,
):
    """`tf.nn.convolution`; its gradient by the input is a convolution with the mirrored kernel."""
    inputs, kernel = tf.convert_to_tensor(input), tf.convert_to_tensor(filters)
    is_plain = all(n in (None, 1) for n in tf.nest.flatten([strides, dilations]))
    if (
        is_plain
        and data_format in (None, "NHWC")
        and padding == "SAME"
        and _has_quick_mirror(inputs, kernel)
    ):
        return _convolution(inputs, kernel)
    return tensorflow_convolution(
        inputs, kernel, strides, padding, data_format, dilations, name=name
    )


def _has_quick_mirror(inputs: tf.Tensor, kernel: tf.Tensor) -> bool:
    if len(kernel.shape) != 4 or not kernel.shape.is_fully_defined():
        return False
    if kernel.shape[2] != inputs.shape[-1]:  # groups
        return False
    sides = kernel.shape[:2]
    is_odd = all(side % 2 for side in sides)
    is_float = inputs.dtype in (tf.float32, tf.float64)
    return is_odd and max(sides) > 1 and kernel.shape[2] >= MIN_CHANNELS and is_float


# A function of its own: TensorFlow keeps a custom gradient, and the graph it is in, for ever.
# Here that is one small graph for each size of convolution, not a whole step for each fit.
@tf.function(autograph=False)
@tf.custom_gradient
def _convolution(inputs, kernel):
    def gradient(upstream):
        mirrored = tf.transpose(tf.reverse(kernel, [0, 1]), [0, 1, 3, 2])
        by_kernel = tf.raw_ops.Conv2DBackpropFilter(
            input=inputs,
            filter_sizes=kernel.shape,
            out_backprop=upstream,
            strides=[1, 1, 1, 1],
            padding="SAME",
        )
        return tensorflow_convolution(upstream, mirrored, 1, "SAME"), by_kernel

    return tensorflow_convolution(inputs, kernel, 1, "SAME"), gradient


def max_pool(input, ksize, strides, padding, data_format=None, name=None):
    """`tf.nn.max_pool`; its gradient, to the bit, with a compiled search for the largest values."""
    inputs = tf.convert_to_tensor(input)
    if data_format in (None, "NHWC") and padding in ("SAME", "VALID") and _has_quick_search(inputs):
        return _max_pool(inputs, _two_sides(ksize), _two_sides(strides), padding)
    return tensorflow_max_pool(inputs, ksize, strides, padding, data_format, name=name)


def _has_quick_search(inputs: tf.Tensor) -> bool:
    if len(inputs.shape) != 4 or None in inputs.shape[1:]:
        return False
    is_float = inputs.dtype in (tf.float32, tf.float64)
    is_within_xla = control_flow_util.GraphOrParentsInXlaContext(tf.compat.v1.get_default_graph())
    is_large = inputs.shape[1:].num_elements() >= MIN_POOLED
    return is_float and is_large and not is_within_xla and tf.test.is_built_with_xla()


def _two_sides(sizes) -> tuple[int, ...]:
    """(height, width) of what `tf.nn.max_pool` takes: one number, two, or one for each axis."""
    sizes = tuple(tf.nest.flatten(sizes))
    return sizes * 2 if len(sizes) == 1 else sizes[-3:-1] if len(sizes) == 4 else sizes


@tf.function(autograph=False)
def _max_pool(inputs, sides, strides, padding):
    options = {"ksize": [1, *sides, 1], "strides": [1, *strides, 1], "padding": padding}

    @tf.custom_gradient
    def pool(inputs):
        outputs = tf.raw_ops.MaxPool(input=inputs, **options)

        def gradient(upstream):
            positions = _positions_of_largest(inputs, outputs, sides, strides, padding)
            return spread(upstream, positions)

        return outputs, gradient

    @tf.custom_gradient
    def spread(upstream, positions):
        spread_out = tf.raw_ops.MaxPoolGradWithArgmax(
            input=inputs, grad=upstream, argmax=positions, **options
        )

        def gradient(second):
            flat = tf.reshape(second, [tf.shape(second)[0], -1])
            return tf.gather(flat, positions, batch_dims=1), None

        return spread_out, gradient

    return pool(inputs)


@tf.function(autograph=False, jit_compile=True)
def _positions_of_largest(inputs, outputs, sides, strides, padding):
    """Where in its flattened image each window's first largest value is."""
    height, width, channels = inputs.shape[1:]
    rows, columns = outputs.shape[1:3]
    top, bottom = _margins(height, rows, sides[0], strides[0], padding)
    left, right = _margins(width, columns, sides[1], strides[1], padding)
    padded = tf.pad(
        inputs, [[0, 0], [top, bottom], [left, right], [0, 0]], constant_values=inputs.dtype.min
    )

    def position(i, j):
        # Of a place beyond the image: the nearest one in it, which is in the window, too.
        row = np.clip(np.arange(rows) * strides[0] - top + i, 0, height - 1)
        column = np.clip(np.arange(columns) * strides[1] - left + j, 0, width - 1)
        pixel = row[:, None] * width + column
        return tf.constant(pixel[:, :, None] * channels + np.arange(channels), tf.int32)

    positions = tf.broadcast_to(position(0, 0), tf.shape(outputs))
    for i in reversed(range(sides[0])):
        for j in reversed(range(sides[1])):
            values = padded[
                :,
                i : i + (rows - 1) * strides[0] + 1 : strides[0],
                j : j + (columns - 1) * strides[1] + 1 : strides[1],
            ]
            positions = tf.where(tf.equal(values, outputs), position(i, j), positions)
    return tf.cast(positions, tf.int64)


def _margins(size: int, windows: int, side: int, stride: int, padding: str) -> tuple[int, int]:
    """By how much the windows reach over the two ends of an axis."""
    if padding == "VALID":
        return 0, 0
    both = max((windows - 1) * stride + side - size, 0)
    return both // 2, both - both // 2
