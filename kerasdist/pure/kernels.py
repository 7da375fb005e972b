"""Gradients by kernels that are quicker on a CPU. The maths is TensorFlow's, rounding apart."""

from __future__ import annotations

import tensorflow as tf

# On a CPU the gradient by a convolution's input takes up to nine times as long as a forward
# convolution of the same size (`benchmarks/kernels.py`); with few input channels it does not.
MIN_CHANNELS = 8

tensorflow_convolution = tf.nn.convolution


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
