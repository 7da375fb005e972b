"""Decodes image files in a TensorFlow graph, as `ImageReader.read` does with Pillow."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from kerasdist.data.folders.gif_graph import gif_on_white

_PNG, _JPEG, _GIF, _BMP = b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM"
_RIFF = b"RIFF"
# The EXIF entry of the orientation: tag 0x0112, type SHORT, one value; in both byte orders.
_ENTRIES = (
    (bytes([0x12, 0x01, 3, 0, 1, 0, 0, 0]), 0),
    (bytes([0x01, 0x12, 0, 3, 0, 0, 0, 1]), 1),
)
# It comes early in a file.
_MOST_HEADER = 4096
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
        return _turned(image, _orientation_after(content, _EXIF[_RIFF]))

    def png() -> tf.Tensor:
        image = _on_white(tf.io.decode_png(content, channels=4))
        return _turned(image, _orientation_after(content, _EXIF[_PNG]))

    return tf.case(
        [
            (begins(_JPEG), lambda: _jpeg(content)),
            (begins(_PNG), png),
            (begins(_GIF), lambda: _as_float(gif_on_white(content))),
            (begins(_BMP), lambda: _as_float(_three(tf.io.decode_bmp(content)))),
        ],
        default=webp,
    )


def _as_float(image: tf.Tensor) -> tf.Tensor:
    return tf.ensure_shape(tf.cast(image, tf.float32), (None, None, 3))


def _three(image: tf.Tensor) -> tf.Tensor:
    """A BMP's 1, 3 or 4 channels as 3. Programs leave the fourth at 0, so it is not used."""
    is_gray = tf.equal(tf.shape(image)[2], 1)
    return tf.cond(is_gray, lambda: tf.repeat(image, 3, axis=2), lambda: image[..., :3])


def _on_white(image: tf.Tensor) -> tf.Tensor:
    image = tf.ensure_shape(tf.cast(image, tf.float32), (None, None, 4))
    alpha = image[..., 3:] / 255
    return tf.round(image[..., :3] * alpha + 255 * (1 - alpha))


def _jpeg(content: tf.Tensor) -> tf.Tensor:
    # As Pillow decodes: other methods are faster and differ.
    image = tf.io.decode_jpeg(content, channels=3, dct_method="INTEGER_ACCURATE")
    has_exif = tf.strings.regex_full_match(
        tf.strings.substr(content, 0, 64, unit="BYTE"), r"(?s)\C*Exif\C*"
    )
    number = tf.where(has_exif, _orientation(content), 1)
    return _turned(_as_float(image), number)


def _turned(image: tf.Tensor, number: tf.Tensor) -> tf.Tensor:
    """An image, turned as its EXIF orientation says."""

    def when(*numbers: int) -> tf.Tensor:
        return tf.reduce_any(tf.equal(number, numbers))

    image = tf.cond(when(5, 6, 7, 8), lambda: tf.transpose(image, (1, 0, 2)), lambda: image)
    image = tf.cond(when(2, 3, 6, 7), lambda: image[:, ::-1], lambda: image)
    return tf.cond(when(3, 4, 7, 8), lambda: image[::-1], lambda: image)


def _orientation_after(content: tf.Tensor, name: str) -> tf.Tensor:
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


def _resized(image: tf.Tensor, size: tuple[int, int]) -> tf.Tensor:
    resized = tf.image.resize(image, size, antialias=True)
    return tf.cast(tf.clip_by_value(tf.round(resized), 0, 255), tf.uint8)
