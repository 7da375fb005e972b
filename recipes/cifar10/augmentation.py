"""Augments batches of images with random crops, flips and colours, in compiled code.

All randomness is stateless: it depends on the batch's seed alone, and that on (seed, position).
"""

from __future__ import annotations

import tensorflow as tf

from .whitening import MEAN

IMAGE_SIZE = 32


def tutorial(batch, seed, crop_size: int = 24):
    """Distorts images as the tutorial did: crop, flip, brightness by up to 63, contrast 0.2 to 1.8.

    The images stay on the scale of 0 to 255, as float32 and without clipping. The network
    standardizes them.

    Example:
        >>> images = tf.zeros((2, 32, 32, 3), tf.uint8)
        >>> tutorial({"image": images}, tf.constant([1, 2]))["image"].shape
        TensorShape([2, 24, 24, 3])
    """
    images = batch["image"]
    num = tf.shape(images)[0]
    most = IMAGE_SIZE - crop_size + 1
    top = _integers(seed, 0, num, most)
    left = _integers(seed, 1, num, most)
    flipped = _integers(seed, 2, num, 2) == 1
    steps = tf.range(crop_size)
    images = take(images, top[:, None] + steps, _turned(left[:, None] + steps, flipped))
    images = tf.ensure_shape(tf.cast(images, tf.float32), (None, crop_size, crop_size, 3))
    images += _floats(seed, 3, num, -63.0, 63.0)
    contrast = _floats(seed, 4, num, 0.2, 1.8)
    mean = tf.reduce_mean(images, axis=(1, 2), keepdims=True)
    return {**batch, "image": (images - mean) * contrast + mean}


def translate_and_flip(
    batch, seed, epoch, *, pixels: int = 2, first_flips: int = 0, cutout: int = 0
):
    """Shifts images by up to `pixels` (borders reflected), and flips each in every other epoch.

    The `index` of an image and `first_flips` decide whether it is flipped in the first epoch. With
    `cutout`, a square of that side is then painted over, at a random place in the image.

    Example:
        >>> images = tf.reshape(tf.range(32 * 32 * 3), (1, 32, 32, 3))
        >>> batch = {"image": images, "index": tf.constant([0])}
        >>> def flips(epoch):
        ...     moved = translate_and_flip(batch, tf.constant([1, 2]), epoch, pixels=0)["image"]
        ...     return bool(tf.reduce_any(moved != images))
        >>> flips(0) != flips(1), flips(0) == flips(2)
        (True, True)
    """
    images = batch["image"]
    num = tf.shape(images)[0]
    top = _integers(seed, 0, num, 2 * pixels + 1) - pixels
    left = _integers(seed, 1, num, 2 * pixels + 1) - pixels
    flipped = (first_flip(batch["index"], first_flips) + tf.cast(epoch, tf.int32)) % 2 == 1
    steps = tf.range(IMAGE_SIZE)
    rows = _reflected(top[:, None] + steps)
    images = take(images, rows, _turned(_reflected(left[:, None] + steps), flipped))
    images = tf.ensure_shape(images, (None, IMAGE_SIZE, IMAGE_SIZE, 3))
    if cutout:
        images = _cut_out(images, seed, cutout)
    return {**batch, "image": images}


def _cut_out(images, seed, size: int):
    """Paints a square of each image in the mean colour, which is about zero for the network."""
    num = tf.shape(images)[0]
    top, left = (_integers(seed, i, num, IMAGE_SIZE - size + 1)[:, None] for i in (2, 3))
    steps = tf.range(IMAGE_SIZE)
    in_rows = (steps >= top) & (steps < top + size)
    in_columns = (steps >= left) & (steps < left + size)
    is_cut = in_rows[:, :, None, None] & in_columns[:, None, :, None]
    return tf.where(is_cut, tf.cast(tf.round(tf.constant(MEAN)), images.dtype), images)


def views(images):
    """Returns each image, shifted by one pixel up left and down right, and the three mirrored.

    Example:
        >>> len(views(tf.zeros((1, 32, 32, 3), tf.uint8)))
        6
    """
    steps = tf.range(IMAGE_SIZE)
    moved = []
    for by in (0, 1, -1):
        shifted = tf.repeat(_reflected(steps + by)[None], tf.shape(images)[0], axis=0)
        moved += [take(images, shifted, shifted), take(images, shifted, shifted[:, ::-1])]
    return [tf.ensure_shape(view, (None, IMAGE_SIZE, IMAGE_SIZE, 3)) for view in moved]


def first_flip(index, seed: int):
    """Returns a random 0 or 1 for each example, which depends on its index and the seed alone.

    Example:
        >>> first_flip(tf.range(4), seed=1).shape
        TensorShape([4])
    """
    # Two rounds of a multiplicative hash. The highest bits are mixed best.
    value = tf.cast(index, tf.uint64) + tf.constant(seed % 2**32, tf.uint64) * 2**32
    for _ in range(2):
        value = tf.bitwise.bitwise_xor(value, _shifted(value, 31))
        value *= tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    return tf.cast(_shifted(value, 63), tf.int32)


def _shifted(value, bits: int):
    return tf.bitwise.right_shift(value, tf.constant(bits, tf.uint64))


def take(images, rows, columns):
    """Returns `images[i, rows[i], columns[i]]` for each image i: crop, shift and flip in one.

    Example:
        >>> images = tf.reshape(tf.range(12), (1, 2, 2, 3))
        >>> take(images, [[1, 0]], [[0, 1]])[0, 0, 0].numpy().tolist()
        [6, 7, 8]
    """
    images = tf.gather(images, rows, axis=1, batch_dims=1)
    return tf.gather(images, columns, axis=2, batch_dims=1)


def _reflected(index):
    """Mirrors positions outside the image at its border."""
    index = tf.abs(index)
    return (IMAGE_SIZE - 1) - tf.abs((IMAGE_SIZE - 1) - index)


def _turned(columns, flipped):
    return tf.where(flipped[:, None], columns[:, ::-1], columns)


def _numbered(seed, number: int):
    """A different seed for each use of the batch's seed."""
    return tf.cast(seed, tf.int64) + tf.constant([number, 0], tf.int64)


def _integers(seed, number: int, num, limit: int):
    return tf.random.stateless_uniform(
        (num,), _numbered(seed, number), 0, limit, tf.int32, alg="philox"
    )


def _floats(seed, number: int, num, lowest: float, highest: float):
    return tf.random.stateless_uniform(
        (num, 1, 1, 1), _numbered(seed, number), lowest, highest, tf.float32, alg="philox"
    )
