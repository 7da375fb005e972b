"""Decodes the first frame of a GIF in a TensorFlow graph, with white where it is transparent."""

from __future__ import annotations

import tensorflow as tf

# The first bytes of a block: an extension, and the one that says which colour is transparent.
_EXTENSION, _CONTROL = 0x21, 0xF9
# The header comes before the first table of colours, the position of a frame before its own.
_HEADER, _FRAME = 13, 10


def gif_on_white(content: tf.Tensor) -> tf.Tensor:
    """The first frame: uint8 `[height, width, 3]`.

    TensorFlow writes black for transparent pixels. To tell them from black ones, black becomes
    (1, 1, 1) in the tables of colours before the file is decoded.
    """
    data = tf.cast(tf.io.decode_raw(content, tf.uint8), tf.int32)
    size = tf.size(data)
    data = tf.pad(data, [[0, 1024]])  # A damaged file is refused by the decoder.
    frame, is_transparent = _first_frame(data, size)

    def on_white() -> tf.Tensor:
        changed = _without_black(data, _HEADER, _colours(data[10]))
        changed = _without_black(changed, frame + _FRAME, _colours(data[frame + 9]))
        image = tf.io.decode_gif(_as_bytes(changed[:size]))[0]
        is_empty = tf.reduce_all(tf.equal(image, 0), axis=-1, keepdims=True)
        return tf.where(is_empty, tf.constant(255, tf.uint8), image)

    return tf.cond(is_transparent, on_white, lambda: tf.io.decode_gif(content)[0])


def _first_frame(data: tf.Tensor, size: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Where the first frame begins, and whether one of its colours is transparent."""

    def skipped(position: tf.Tensor, is_transparent: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        is_control = tf.equal(data[position + 1], _CONTROL)
        flag = tf.equal(data[position + 3] % 2, 1)
        (end,) = tf.while_loop(
            lambda p: (data[p] > 0) & (p < size), lambda p: (p + data[p] + 1,), (position + 2,)
        )
        return end + 1, tf.where(is_control, flag, is_transparent)

    return tf.while_loop(
        lambda p, _: tf.equal(data[p], _EXTENSION) & (p < size),
        skipped,
        (_HEADER + 3 * _colours(data[10]), tf.constant(False)),
    )


def _colours(flags: tf.Tensor) -> tf.Tensor:
    """The number of colours in a table; 0 without one."""
    return tf.where(flags >= 128, tf.bitwise.left_shift(2, flags % 8), 0)


def _without_black(data: tf.Tensor, start: tf.Tensor | int, colours: tf.Tensor) -> tf.Tensor:
    table = tf.reshape(data[start : start + 3 * colours], (-1, 3))
    is_black = tf.reduce_all(tf.equal(table, 0), axis=-1, keepdims=True)
    table = tf.reshape(tf.where(is_black, 1, table), (-1,))
    return tf.concat([data[:start], table, data[start + 3 * colours :]], axis=0)


def _as_bytes(data: tf.Tensor) -> tf.Tensor:
    """The string of some bytes."""
    return tf.strings.reduce_join(tf.gather([bytes([i]) for i in range(256)], data))
