"""Augments spoken clips: random speed, pitch and start, and masks over times and bands.

All randomness is stateless: it depends on the batch's seed alone, and that on (seed, position).
"""

from __future__ import annotations

import tensorflow as tf

FASTEST, SLOWEST = 1.15, 0.85
MOST_SHIFT = 2  # bands
TIME_MASKS, BAND_MASKS = 2, 2
MOST_TIME, MOST_BANDS = 0.15, 6  # part of the clip; bands


def speech(batch, seed, mels: int = 40):
    """Changes the speed, start and pitch of each clip, and masks times and bands.

    The padding after a clip stays zero, and `length` is the new length.

    Example:
        >>> batch = {"frames": tf.ones((2, 20, 40)), "length": tf.constant([20, 10])}
        >>> sorted(speech(batch, tf.constant([1, 2])))
        ['frames', 'length']
    """
    frames, length = batch["frames"], batch["length"]
    num, time = tf.shape(frames)[0], tf.shape(frames)[1]
    # Cut up to a tenth of the clip at its start, and at its end.
    before, after = (
        tf.cast(_floats(seed, i, (num,), 0, 0.1) * tf.cast(length, tf.float32), tf.int32)
        for i in (0, 1)
    )
    speed = _floats(seed, 2, (num,), SLOWEST, FASTEST)
    rest = length - before - after
    new_length = tf.maximum(tf.cast(tf.cast(rest, tf.float32) / speed, tf.int32), 1)
    longest = tf.cast(tf.math.ceil(tf.cast(time, tf.float32) / SLOWEST), tf.int32)
    steps = tf.range(longest)[None]
    place = before[:, None] + tf.cast(tf.cast(steps, tf.float32) * speed[:, None], tf.int32)
    frames = tf.gather(frames, tf.minimum(place, time - 1), axis=1, batch_dims=1)
    bands = _shifted_bands(seed, num, mels, frames.shape[2])
    frames = tf.gather(frames, bands, axis=2, batch_dims=1)
    keep = steps < new_length[:, None]
    most_time = MOST_TIME * tf.cast(new_length, tf.float32)
    for i in range(TIME_MASKS):
        keep &= ~_inside(steps, *_interval(seed, 10 + i, new_length, most_time))
    band = tf.range(frames.shape[2])[None] % mels
    heard = tf.ones_like(band, tf.bool)
    for i in range(BAND_MASKS):
        heard &= ~_inside(band, *_interval(seed, 20 + i, tf.fill((num,), mels), MOST_BANDS + 1.0))
    frames *= tf.cast(keep, frames.dtype)[:, :, None] * tf.cast(heard, frames.dtype)[:, None]
    # Cut the batch to its longest clip, so that the network does not run over padding.
    frames = frames[:, : tf.reduce_max(new_length)]
    return {**batch, "frames": frames, "length": new_length}


def _shifted_bands(seed, num, mels: int, width: int):
    """The source of each band: all bands of a clip move up or down together."""
    shift = tf.random.stateless_uniform(
        (num, 1), _numbered(seed, 3), -MOST_SHIFT, MOST_SHIFT + 1, tf.int32, alg="philox"
    )
    own = tf.range(width)[None]
    return own // mels * mels + tf.clip_by_value(own % mels + shift, 0, mels - 1)


def _inside(places, first, end):
    return (places >= first[:, None]) & (places < end[:, None])


def _interval(seed, number: int, length, most):
    """A random part of `length`, shorter than `most`, for each example."""
    num = tf.shape(length)[0]
    size = tf.cast(_floats(seed, number, (num,), 0, 1) * most, tf.int32)
    room = tf.cast(length - size + 1, tf.float32)
    first = tf.cast(_floats(seed, number + 100, (num,), 0, 1) * room, tf.int32)
    return first, first + size


def _numbered(seed, number: int):
    """A different seed for each use of the batch's seed."""
    return tf.cast(seed, tf.int64) + tf.constant([number, 0], tf.int64)


def _floats(seed, number: int, shape, lowest: float, highest: float):
    return tf.random.stateless_uniform(
        shape, _numbered(seed, number), lowest, highest, tf.float32, alg="philox"
    )
