"""Which numbers of devices a test can use: on GPUs as many as there are, on CPUs all."""

import pytest
import tensorflow as tf

NUM_GPUS = len(tf.config.get_visible_devices("GPU"))


def at_most(count):
    """`count`, or the number of GPUs if there are fewer."""
    return min(count, NUM_GPUS) if NUM_GPUS else count


def those_here(*counts):
    """The counts for which there are devices. Skips the test if there are none."""
    found = [count for count in counts if at_most(count) == count]
    if not found:
        pytest.skip(f"needs {min(counts)} GPUs, and the number of GPUs is {NUM_GPUS}")
    return found
