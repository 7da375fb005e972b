"""Gradients that kerasdist computes in another way than TensorFlow and Keras on CPUs.

python benchmarks/kernels.py [--batch 128]

The gradient by a convolution's input as a convolution with the mirrored kernel, that of max-pooling
with a compiled search (`kerasdist/pure/kernels.py`), and GRU and LSTM with their inputs multiplied
at once (`kerasdist/pure/recurrence.py`; by all of their variables, too). Both ways are timed in
turns; printed are the medians, and their ratio.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import facts
import keras
import numpy as np
import tensorflow as tf

from kerasdist.pure import kernels, recurrence

# Side of the image, channels in, filters, side of the kernel.
CONVOLUTIONS = [
    (31, 24, 64, 3),
    (15, 64, 256, 3),
    (7, 256, 256, 3),
    (3, 256, 256, 3),
    (15, 32, 88, 3),
    (7, 88, 144, 3),
    (12, 64, 64, 5),
    (56, 16, 16, 3),
    (24, 3, 64, 5),
]
# Side of the image, channels, side of the window; stride 2.
POOLS = [(24, 64, 3), (12, 64, 3), (31, 32, 2), (15, 88, 2), (7, 144, 3), (12, 16, 2)]
# Moments, features, units.
RECURRENT = [(keras.layers.GRU, 30, 160, 96), (keras.layers.LSTM, 30, 160, 96)]


def gradient(function, shape, variables):
    """A compiled gradient by the input and variables."""

    @tf.function
    def compute(inputs, upstream):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = function(inputs)
        return tape.gradient(outputs, [inputs, *variables], output_gradients=upstream)

    random = np.random.default_rng(0)
    inputs = tf.constant(random.normal(size=shape), tf.float32)
    upstream = tf.constant(random.normal(size=tf.function(function)(inputs).shape), tf.float32)
    return lambda: compute(inputs, upstream)


def seconds(function) -> float:
    began = time.perf_counter()
    function()[0][:1].numpy()
    return time.perf_counter() - began


def row(what: str, theirs, ours, shape, rounds: int, variables=()) -> None:
    both = [gradient(function, shape, variables) for function in (theirs, ours)]
    times = [[seconds(f) for f in both] for _ in range(rounds + 1)][1:]
    before, after = (1000 * statistics.median(column) for column in zip(*times, strict=True))
    print(f"| {what} | {before:.1f} ms | {after:.1f} ms | {after / before:.2f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    given = parser.parse_args()
    tf.get_logger().setLevel("ERROR")  # Of functions made in loops.
    kernels.MIN_CHANNELS = kernels.MIN_POOLED = 1  # Shows where it would not pay, too.
    random = np.random.default_rng(0)
    print(facts.as_line(facts.about()))
    print("| | TensorFlow, Keras | kerasdist | ratio |\n|---|--:|--:|--:|")
    for side, channels, filters, size in CONVOLUTIONS:
        kernel = tf.constant(random.normal(size=(size, size, channels, filters)), tf.float32)
        row(
            f"convolution of {side}x{side}x{channels} by {size}x{size} to {filters}",
            lambda x, kernel=kernel: kernels.tensorflow_convolution(x, kernel, 1, "SAME"),
            lambda x, kernel=kernel: kernels.convolution(x, kernel, 1, "SAME"),
            (given.batch, side, side, channels),
            given.rounds,
        )
    for side, channels, size in POOLS:
        row(
            f"max-pooling of {side}x{side}x{channels} by {size}x{size}",
            lambda x, size=size: kernels.tensorflow_max_pool(x, size, 2, "SAME"),
            lambda x, size=size: kernels.max_pool(x, size, 2, "SAME"),
            (given.batch, side, side, channels),
            given.rounds,
        )
    for kind, moments, features, units in RECURRENT:
        layer = kind(units)
        layer.build((None, moments, features))
        states = [tf.zeros((given.batch, units)) for _ in tf.nest.flatten(layer.state_size)]
        row(
            f"{kind.__name__} of {moments}x{features} to {units}",
            lambda x, layer=layer, states=states: layer.inner_loop(x, states, None)[0],
            lambda x, layer=layer, states=states: recurrence.loop(layer, x, states, None)[0],
            (given.batch, moments, features),
            given.rounds,
            [variable.value for variable in layer.trainable_variables],
        )


if __name__ == "__main__":
    main()
