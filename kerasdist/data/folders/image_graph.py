"""Decodes image files in a TensorFlow graph, as `ImageReader.read` does with Pillow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kerasdist.data.folders.bmp_graph import bmp_with_alpha
from kerasdist.data.folders.exif_graph import orientation_after, orientation_of_jpeg
from kerasdist.data.folders.gif_graph import gif_on_white

_PNG, _JPEG, _GIF, _BMP = b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM"
_RIFF = b"RIFF"
# The bits of a value are in the last but four of these bytes.
_PNG_HEADER, _PNG_DEPTH = 29, 24
# Before the EXIF data of each format.
_EXIF = {_PNG: "eXIf", _RIFF: "EXIF"}


def decode(contents: Any, size: tuple[int, int]) -> tf.Tensor:
    """Decodes the bytes of files: uint8 `[n, height, width, 3]`."""
    # Its branches are TensorFlow's already.
    one = tf.autograph.experimental.do_not_convert(_image)
    return tf.map_fn(
        lambda content: one(content, size),
        tf.convert_to_tensor(contents),
        fn_output_signature=tf.TensorSpec((*size, 3), tf.uint8),
    )


def _image(content: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    return _resized(_decoded(content), size)


def _decoded(content: tf.Tensor) -> tf.Tensor:
    """The image of a file: float32 `[height, width, 3]`."""

    def begins(start: bytes) -> tf.Tensor:
        return tf.equal(tf.strings.substr(content, 0, len(start)), start)

    def webp() -> tf.Tensor:
        decoder = getattr(tf.io, "decode_webp", None)  # Not in TensorFlow 2.19.
        if decoder is None:
            tf.debugging.assert_equal(begins(_RIFF), False, "TensorFlow 2.19 cannot decode WebP")
            return _on_white(tf.io.decode_png(content, channels=4))  # Says what is wrong.
        image = decoder(content)[0]  # It refuses to add or to drop a channel.
        is_opaque = tf.equal(tf.shape(image)[2], 3)
        image = tf.cond(is_opaque, lambda: _as_float(image), lambda: _on_white(image))
        return _turned(image, orientation_after(content, _EXIF[_RIFF]))

    return tf.case(
        [
            (begins(_JPEG), lambda: _jpeg(content)),
            (begins(_PNG), lambda: _png(content)),
            (begins(_GIF), lambda: _as_float(gif_on_white(content))),
            (begins(_BMP), lambda: _on_white(bmp_with_alpha(content))),
        ],
        default=webp,
    )


def _as_float(image: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(tf.cast(image, tf.float32), (None, None, 3))


def _on_white(image: tf.Tensor) -> tf.Tensor:
    image = tf.ensure_shape(tf.cast(image, tf.float32), (None, None, 4))
    alpha = image[..., 3:] / 255
    return tf.round(image[..., :3] * alpha + 255 * (1 - alpha))


def _jpeg(content: tf.Tensor) -> tf.Tensor:
    # As Pillow decodes: other methods are faster and differ.
    image = tf.io.decode_jpeg(content, channels=3, dct_method="INTEGER_ACCURATE")
    return _turned(_as_float(image), orientation_of_jpeg(content))


def _png(content: tf.Tensor) -> tf.Tensor:
    image = tf.io.decode_png(content, channels=4)
    header = tf.io.decode_raw(tf.strings.substr(content, 0, _PNG_HEADER), tf.uint8)
    before_pixels = tf.strings.split(content, "IDAT")[0]
    # With fewer than 8 bits, the alpha of an opaque image is not 255 (TensorFlow 2.21).
    is_opaque = (header[_PNG_DEPTH] < 8) & tf.equal(
        tf.size(tf.strings.split(before_pixels, "tRNS")), 1
    )
    image = tf.cond(is_opaque, lambda: _as_float(image[..., :3]), lambda: _on_white(image))
    return _turned(image, orientation_after(content, _EXIF[_PNG]))


def _turned(image: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """An image, turned as its EXIF orientation says."""

    def when(*numbers: int) -> tf.Tensor:
        return tf.reduce_any(tf.equal(number, numbers))

    image = tf.cond(when(5, 6, 7, 8), lambda: tf.transpose(image, (1, 0, 2)), lambda: image)
    image = tf.cond(when(2, 3, 6, 7), lambda: image[:, ::-1], lambda: image)
    return tf.cond(when(3, 4, 7, 8), lambda: image[::-1], lambda: image)


def _resized(image: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    resized = tf.image.resize(image, size, antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)
