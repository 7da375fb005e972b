"""Finds how the camera was held, in a TensorFlow graph: the EXIF orientation of a file."""

from __future__ import annotations

import tensorflow as tf

# The EXIF entry of the orientation: tag 0x0112, type SHORT, one value; in both byte orders.
_ENTRIES = (
    (bytes([0x12, 0x01, 3, 0, 1, 0, 0, 0]), 0),
    (bytes([0x01, 0x12, 0, 3, 0, 0, 0, 1]), 1),
)
# It comes early in the EXIF data.
_MOST_HEADER = 4096
# A JPEG is a row of segments: 0xFF, its kind, two bytes for its size, data. Its picture comes last.
_MARK, _APP1, _PICTURE, _END = 0xFF, 0xE1, 0xDA, 0xD9
# These have no size and no data.
_FIRST_EMPTY, _LAST_EMPTY, _RESERVED = 0xD0, 0xD8, 0x01
_NAME = b"Exif\0\0"


def orientation_of_jpeg(content: tf.Tensor) -> tf.Tensor:
    """The EXIF orientation of a JPEG from 1 to 8; 1 without one."""
    size = tf.strings.length(content)
    data = tf.pad(tf.io.decode_raw(content, tf.uint8), [[0, 16]])

    def byte(position: tf.Tensor) -> tf.Tensor:
        return tf.cast(data[position], tf.int32)

    def goes_on(position: tf.Tensor) -> tf.Tensor:
        kind = byte(position + 1)
        is_exif = tf.reduce_all(tf.equal(data[position + 4 : position + 10], list(_NAME)))
        is_found = tf.equal(byte(position), _MARK) & tf.equal(kind, _APP1) & is_exif
        is_last = tf.equal(byte(position), _MARK) & tf.reduce_any(tf.equal(kind, (_PICTURE, _END)))
        return (position < size) & ~is_found & ~is_last

    def following(position: tf.Tensor) -> tuple[tf.Tensor]:
        kind = byte(position + 1)
        is_empty = ((kind >= _FIRST_EMPTY) & (kind <= _LAST_EMPTY)) | tf.equal(kind, _RESERVED)
        # Bytes may fill the space between segments.
        is_filling = tf.not_equal(byte(position), _MARK) | tf.equal(kind, _MARK)
        length = 2 + byte(position + 2) * 256 + byte(position + 3)
        step = tf.where(is_filling, 1, tf.where(is_empty, 2, length))
        return (tf.minimum(position + step, size),)

    (position,) = tf.while_loop(goes_on, following, (tf.constant(0),))
    is_found = (position < size) & tf.equal(byte(position + 1), _APP1)
    length = tf.where(is_found, byte(position + 2) * 256 + byte(position + 3), 0)
    return _orientation(tf.strings.substr(content, position, length))


def orientation_after(content: tf.Tensor, name: str) -> tf.Tensor:
    """The EXIF orientation after the name of its part of the file, which may be at the end."""
    parts = tf.strings.split(content, name)
    has_exif = tf.size(parts) > 1
    return tf.cond(has_exif, lambda: _orientation(parts[1]), lambda: tf.constant(1))


def _orientation(content: tf.Tensor) -> tf.Tensor:
    """The EXIF orientation from 1 to 8 at the start of some bytes; 1 without one."""
    header = tf.io.decode_raw(tf.strings.substr(content, 0, _MOST_HEADER), tf.uint8)
    header = tf.pad(header, [[0, 16]])
    number = tf.constant(1)
    for entry, last in _ENTRIES:
        windows = tf.signal.frame(header, len(entry) + 2, 1)
        is_here = tf.reduce_all(tf.equal(windows[:, : len(entry)], list(entry)), axis=1)
        # The value is the first or the second of two bytes.
        values = tf.cast(windows[:, len(entry) + last], tf.int32)
        found = tf.boolean_mask(values, is_here & (values >= 1) & (values <= 8))
        found = tf.concat([found, [number]], axis=0)
        number = found[0]
    return number
