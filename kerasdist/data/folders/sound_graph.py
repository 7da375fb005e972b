"""Decodes WAV files in a TensorFlow graph, as `SoundReader.read` does with NumPy."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_FMT, _DATA = (int.from_bytes(name, "little") for name in (b"fmt ", b"data"))
_UNKNOWN_SIZE = 0xFFFFFFFF


def decode(contents: Any, rate: int, seconds: float, length: int) -> tf.Tensor:
    """Decodes the bytes of files: float32 `[n, length]`."""
    # Its branches are TensorFlow's already.
    one = tf.autograph.experimental.do_not_convert(_sound)
    return tf.map_fn(
        lambda content: one(content, rate, seconds, length),
        tf.convert_to_tensor(contents),
        fn_output_signature=tf.TensorSpec((length,), tf.float32),
    )


def _sound(content: tf.Tensor, rate: int, seconds: float, length: int) -> tf.Tensor:
    raw = tf.io.decode_raw(content, tf.uint8)
    form, start, size = _chunks(raw)
    kind, channels = _number(raw, form, 2), _number(raw, form + 2, 2)
    kind = tf.where(kind == _EXTENSIBLE, _number(raw, form + 24, 2), kind)
    found, bits = _number(raw, form + 4, 4), _number(raw, form + 14, 2)
    width = channels * bits // 8
    most = tf.cast(tf.math.ceil(seconds * tf.cast(found, tf.float64)), tf.int64)
    num = tf.minimum(size // width, most)
    samples = _converted(raw[start : start + num * width], kind, bits)
    mono = tf.reduce_mean(tf.reshape(samples, tf.stack([num, channels])), axis=1)
    mono = tf.cond(found == rate, lambda: mono, lambda: _resampled(mono, found, rate))[:length]
    return tf.pad(mono, [[0, length - tf.shape(mono)[0]]])


def _chunks(raw: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Where the format begins, where the samples begin, and their number of bytes."""
    end = tf.size(raw, tf.int64)
    zero = tf.constant(0, tf.int64)

    def next_chunk(position: tf.Tensor, form: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        form = tf.where(_number(raw, position, 4) == _FMT, position + 8, form)
        length = _number(raw, position + 4, 4)
        return position + 8 + length + length % 2, form

    def goes_on(position: tf.Tensor, form: tf.Tensor) -> tf.Tensor:
        return tf.cond(
            position + 8 <= end, lambda: _number(raw, position, 4) != _DATA, lambda: False
        )

    position, form = tf.while_loop(goes_on, next_chunk, (zero + 12, zero))
    tf.debugging.assert_greater(form, zero, "The file is not a complete WAV file.")
    size, start = _number(raw, position + 4, 4), position + 8
    is_open = tf.logical_or(size == 0, size == _UNKNOWN_SIZE)
    return form, start, tf.where(is_open, end - start, tf.minimum(size, end - start))


def _number(raw: tf.Tensor, start: Any, length: int) -> tf.Tensor:
    values = tf.cast(raw[start : start + length], tf.int64)
    return tf.reduce_sum(values * [1 << (8 * i) for i in range(length)])


def _converted(content: tf.Tensor, kind: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    """Samples from -1 to 1, from their bytes."""

    def floats(width: int, dtype: tf.DType) -> tf.Tensor:
        return tf.cast(tf.bitcast(tf.reshape(content, (-1, width)), dtype), tf.float32)

    def integers(width: int) -> tf.Tensor:
        parts = tf.cast(tf.reshape(content, (-1, width)), tf.float32)
        # The last byte has the sign.
        upper = parts[:, -1] - 256 * tf.cast(parts[:, -1] > 127, tf.float32)
        lower = [parts[:, i] * 2.0 ** (8 * (i + 1 - width)) for i in range(width - 1)]
        return tf.add_n([*lower, upper]) / 128

    def is_of(wanted: int, width: int) -> tf.Tensor:
        return tf.logical_and(kind == wanted, bits == 8 * width)

    return tf.case(
        [
            (is_of(_PCM, 2), lambda: integers(2)),
            (is_of(_PCM, 1), lambda: tf.cast(content, tf.float32) / 128 - 1),
            (is_of(_PCM, 3), lambda: integers(3)),
            (is_of(_PCM, 4), lambda: integers(4)),
            (is_of(_FLOAT, 4), lambda: floats(4, tf.float32)),
            (is_of(_FLOAT, 8), lambda: floats(8, tf.float64)),
        ],
        exclusive=True,
    )


def _resampled(samples: tf.Tensor, rate: tf.Tensor, wanted: int) -> tf.Tensor:
    """See `sound_reader.resampled`."""
    rate, num = tf.cast(rate, tf.int32), tf.size(samples)
    seconds = -(-num // rate)
    padded = tf.pad(samples, [[0, seconds * rate - num]])
    kept = tf.signal.rfft(padded)[: seconds * wanted // 2 + 1]
    converted = tf.signal.irfft(kept, [seconds * wanted]) * (wanted / tf.cast(rate, tf.float32))
    exact = tf.cast(num, tf.float64) * wanted / tf.cast(rate, tf.float64)
    return converted[: tf.maximum(1, tf.cast(tf.round(exact), tf.int32))]
