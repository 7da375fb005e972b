"""Computes the log-mel frames of a sound, with `tf.signal`."""

from __future__ import annotations

import functools

import numpy as np
import tensorflow as tf

from .recordings import RATE

FRAME_LENGTH, FRAME_STEP, FFT_LENGTH = 200, 80, 256  # 25 ms every 10 ms
LOWEST, HIGHEST = 60.0, 3900.0


def log_mel(samples, mels: int = 40, deltas: bool = True) -> np.ndarray:
    """Turns a clip into frames `[time, bands]` with mean 0 and deviation 1, then their slopes.

    Each clip is computed alone, so its frames do not depend on the other clips of a batch.

    Args:
        samples: int16 `[samples]`.
        mels: The number of mel bands.
        deltas: Whether to add the slope of each band over five frames.

    Example:
        >>> log_mel(np.zeros(800, "int16"), mels=40).shape
        (10, 80)
    """
    return _compiled(mels, deltas)(tf.convert_to_tensor(samples, tf.int16)).numpy()


@functools.cache
def _compiled(mels: int, deltas: bool):
    matrix = tf.signal.linear_to_mel_weight_matrix(mels, FFT_LENGTH // 2 + 1, RATE, LOWEST, HIGHEST)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.int16)], autograph=False)
    def compute(samples):
        sound = tf.cast(samples, tf.float32) / 32768
        # A high-pass filter, as usual for speech: high bands have less energy.
        sound = sound - 0.97 * tf.concat([sound[:1], sound[:-1]], axis=0)
        spectrum = tf.signal.stft(sound, FRAME_LENGTH, FRAME_STEP, FFT_LENGTH, pad_end=True)
        frames = tf.math.log(tf.square(tf.abs(spectrum)) @ matrix + 1e-8)
        mean, variance = tf.nn.moments(frames, axes=[0, 1])
        frames = (frames - mean) * tf.math.rsqrt(variance + 1e-3)
        return tf.concat([frames, _slopes(frames)], axis=1) if deltas else frames

    return compute


def _slopes(frames):
    """The slope of a line through each value and the two values on either side."""
    padded = tf.concat([frames[:1], frames[:1], frames, frames[-1:], frames[-1:]], axis=0)
    n = tf.shape(frames)[0]
    return (2 * (padded[4 : 4 + n] - padded[:n]) + padded[3 : 3 + n] - padded[1 : 1 + n]) / 10
