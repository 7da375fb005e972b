"""What the gradient by a convolution's input costs on a CPU, against a forward convolution.

python benchmarks/kernels.py [--batch 128]

`kerasdist/pure/kernels.py` computes that gradient as a convolution with the mirrored kernel. The
two are timed in turns; printed is the median, and the ratio of the medians.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import facts
import numpy as np
import tensorflow as tf

from kerasdist.pure import kernels

# Side of the image, channels in, filters, side of the kernel.
SIZES = [
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


def gradient_by_input(convolve, shape, kernel):
    @tf.function
    def compute(upstream):
        inputs = tf.zeros(shape)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = convolve(inputs, kernel, 1, "SAME")
        return tape.gradient(outputs, inputs, output_gradients=upstream)

    return compute


def seconds(function, *args) -> float:
    began = time.perf_counter()
    function(*args)[:1].numpy()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    kernels.MIN_CHANNELS = 1  # Shows where it would not pay, too.
    random = np.random.default_rng(0)
    print(facts.as_line(facts.about()))
    print("| image | channels | filters | kernel | TensorFlow | mirrored | ratio |")
    print("|--:|--:|--:|--:|--:|--:|--:|")
    for side, channels, filters, size in SIZES:
        shape = (options.batch, side, side, channels)
        kernel = tf.constant(random.normal(size=(size, size, channels, filters)), tf.float32)
        upstream = tf.constant(random.normal(size=(*shape[:3], filters)), tf.float32)
        both = [
            gradient_by_input(convolve, shape, kernel)
            for convolve in (kernels.tensorflow_convolution, kernels.convolution)
        ]
        times = [[seconds(f, upstream) for f in both] for _ in range(options.rounds + 1)][1:]
        theirs, ours = (1000 * statistics.median(column) for column in zip(*times, strict=True))
        print(
            f"| {side} | {channels} | {filters} | {size} | {theirs:.1f} ms | {ours:.1f} ms "
            f"| {ours / theirs:.2f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
