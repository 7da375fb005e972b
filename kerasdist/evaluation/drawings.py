"""Draws an example of a batch: an image as it is, frames as a spectrogram."""

from __future__ import annotations

import base64
from typing import Any

import tensorflow as tf

from kerasdist.reports import pictures

_CHANNELS = (1, 3, 4)
# Frames with fewer numbers are not worth a picture.
_FEWEST_BANDS = 8


def picture(fields: dict[str, Any], i: int) -> bytes | None:
    """Draws the first field of an example that can be drawn.

    Args:
        fields: A batch by field.
        i: The number of the example in the batch.
    """
    for tensor in fields.values():
        shape = tensor.shape
        if not (tensor.dtype.is_floating or tensor.dtype.is_integer or tensor.dtype.is_bool):
            continue
        if shape.rank == 4 and shape[3] in _CHANNELS:
            return pictures.of_image(tensor[i].numpy())
        if shape.rank == 3 and shape[1] == shape[2] and "length" not in fields:
            return pictures.of_image(tensor[i].numpy())
        if shape.rank == 3 and shape[2] >= _FEWEST_BANDS:
            return pictures.of_frames(tensor[i, : _length(fields, i, shape[1])].numpy())
    return None


def encoded(content: bytes | None) -> str | None:
    """Bytes as text for a JSON file."""
    return None if content is None else base64.b64encode(content).decode()


def _length(fields: dict[str, tf.Tensor], i: int, longest: int) -> int:
    """The number of frames of an example without padding, if a field "length" says it."""
    length = fields.get("length")
    if length is None or length.shape.rank != 1 or not length.dtype.is_integer:
        return longest
    return max(1, min(longest, int(length[i])))
