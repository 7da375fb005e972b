"""Decodes BMP files in a TensorFlow graph, also those with a palette or with transparent parts.

`tf.io.decode_bmp` knows no palettes (TensorFlow 2.21): it takes the numbers of colours for gray.
"""

from __future__ import annotations

from dataclasses import dataclass

import tensorflow as tf

# A header of 12 bytes (OS/2) has short fields, and colours of three bytes; others have four.
_FILE_HEADER, _SHORT_HEADER = 14, 12
# From this size on, a header says which bits of a pixel are its alpha.
_HEADER_WITH_ALPHA = 56
# Compressions: none, and none with masks that say which bits are red, green, blue.
_NONE, _MASKS = 0, 3
_USUAL_MASKS = (0xFF0000, 0xFF00, 0xFF)
_BITS = (1, 4, 8, 24, 32)


@dataclass(frozen=True)
class _Bmp:
    """A file's bytes, as many zeros after them as a header has, and what its header says."""

    data: tf.Tensor
    is_short: tf.Tensor
    width: tf.Tensor
    height: tf.Tensor
    bits: tf.Tensor
    compression: tf.Tensor

    @property
    def row(self) -> tf.Tensor:
        """The bytes of a row of pixels."""
        return (self.width * self.bits + 31) // 32 * 4


def bmp_with_alpha(content: tf.Tensor) -> tf.Tensor:
    """The image: uint8 `[height, width, 4]`."""
    found = _header(content)
    rows = _rows(found, tf.strings.length(content))
    return tf.cond(
        found.bits <= 8, lambda: _with_palette(found, rows), lambda: _with_pixels(found, rows)
    )


def _header(content: tf.Tensor) -> _Bmp:
    data = tf.pad(tf.io.decode_raw(content, tf.uint8), [[0, 128]])
    is_short = tf.equal(_number(data, _FILE_HEADER, 4), _SHORT_HEADER)
    bits = _number(data, tf.where(is_short, 24, 28), 2)
    compression = tf.where(is_short, _NONE, _number(data, 30, 4))
    masks = tf.stack([_number(data, start, 4) for start in (54, 58, 62)])
    has_usual = tf.reduce_all(tf.equal(masks, _USUAL_MASKS)) & tf.equal(bits, 32)
    is_plain = tf.equal(compression, _NONE) | (tf.equal(compression, _MASKS) & has_usual)
    bits = _checked(
        bits,
        is_plain & tf.reduce_any(tf.equal(bits, _BITS)),
        "Received a BMP file that is compressed or has unusual pixels. Expected one without "
        "compression and with 1, 4, 8, 24 or 32 bits per pixel. Save it as PNG.",
    )
    width = tf.where(is_short, _number(data, 18, 2), _number(data, 18, 4))
    height = tf.where(is_short, _number(data, 20, 2), _number(data, 22, 4))
    return _Bmp(data, is_short, width, height, bits, compression)


def _rows(found: _Bmp, size: tf.Tensor) -> tf.Tensor:
    """The bytes of each row of pixels, from the top: uint8 `[height, bytes]`."""
    start, height = _number(found.data, 10, 4), tf.abs(found.height)
    # In 64 bits: a damaged header may say any size.
    needed = tf.cast(found.row, tf.int64) * tf.cast(height, tf.int64) + tf.cast(start, tf.int64)
    is_whole = (found.width > 0) & (height > 0) & (start > 0)
    start = _checked(
        start,
        is_whole & (found.row > 0) & (needed <= tf.cast(size, tf.int64)),
        "Received a BMP file that is damaged or cut short. Expected a complete one. Replace it.",
    )
    rows = tf.reshape(found.data[start : start + found.row * height], (height, found.row))
    return tf.cond(found.height > 0, lambda: rows[::-1], lambda: rows)


def _with_palette(found: _Bmp, rows: tf.Tensor) -> tf.Tensor:
    bits = found.bits
    shifts = tf.range(8 - bits, -1, -bits)
    numbers = tf.bitwise.right_shift(tf.cast(rows, tf.int32)[..., None], shifts)
    numbers %= tf.bitwise.left_shift(1, bits)
    numbers = tf.reshape(numbers, (tf.shape(rows)[0], -1))[:, : found.width]
    return _opaque(tf.gather(_palette(found), numbers))


def _palette(found: _Bmp) -> tf.Tensor:
    """256 colours; black beyond those of the file."""
    size = tf.where(found.is_short, 3, 4)
    first = _FILE_HEADER + _number(found.data, _FILE_HEADER, 4)
    num_colours = tf.clip_by_value((_number(found.data, 10, 4) - first) // size, 0, 256)
    colours = tf.reshape(found.data[first : first + num_colours * size], (-1, size))
    return tf.pad(colours[:, 2::-1], [[0, 256 - tf.shape(colours)[0]], [0, 0]])


def _with_pixels(found: _Bmp, rows: tf.Tensor) -> tf.Tensor:
    num_channels = found.bits // 8
    shape = (tf.shape(rows)[0], found.width, num_channels)
    pixels = tf.reshape(rows[:, : found.width * num_channels], shape)
    # Without masks, programs leave the fourth byte at 0.
    has_alpha = tf.equal(found.compression, _MASKS) & tf.not_equal(_number(found.data, 66, 4), 0)
    has_alpha &= _number(found.data, _FILE_HEADER, 4) >= _HEADER_WITH_ALPHA
    colours = pixels[..., 2::-1]
    return tf.cond(
        has_alpha,
        lambda: tf.concat([colours, pixels[..., 3:]], axis=-1),
        lambda: _opaque(colours),
    )


def _opaque(image: tf.Tensor) -> tf.Tensor:
    return tf.pad(image, [[0, 0], [0, 0], [0, 1]], constant_values=255)


def _checked(value: tf.Tensor, is_right: tf.Tensor, message: str) -> tf.Tensor:
    """The value. What needs it fails with the message, not with one of its own."""
    check = tf.debugging.Assert(is_right, [message])
    with tf.control_dependencies([] if check is None else [check]):  # None: not in a graph.
        return tf.identity(value)


def _number(data: tf.Tensor, start: tf.Tensor | int, size: int) -> tf.Tensor:
    """The number in some bytes, the smallest first; of four bytes it has a sign."""
    numbers = tf.cast(data[start : start + size], tf.int32)
    return tf.reduce_sum(tf.bitwise.left_shift(numbers, tf.range(size) * 8))
