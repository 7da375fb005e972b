"""`LogMel`: a layer that turns samples of sound into a picture of their frequencies."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

_FRAME_SECONDS, _STEP_SECONDS = 0.025, 0.01
_LOWEST = 20.0
# Powers of 10: what is quieter than a clip's loudest place by more is not heard.
_RANGE, _SMALLEST = 8.0, 1e-10


@keras.saving.register_keras_serializable("kerasdist")
class LogMel(keras.layers.Layer):
    """Turns samples `[n, samples]` into log-mel frames `[n, frames, mels]`, 25 ms every 10 ms.

    The values are relative to the loudest place of each clip, from -1 (80 dB quieter) to 1, so they
    do not depend on how loud a recording is. The transform is a convolution with fixed kernels:
    every export format can represent it. It has no weights.

    Args:
        rate: Samples per second.
        mels: The number of bands.
        **kwargs: What every layer takes, such as `name`.

    Example:
        >>> import numpy as np, kerasdist
        >>> kerasdist.LogMel(rate=8000, mels=40)(np.zeros((2, 8000), "float32")).shape
        TensorShape([2, 100, 40])
    """

    def __init__(self, rate: int = 16000, mels: int = 64, **kwargs: Any):
        # float32 even under mixed precision: powers span ten digits.
        super().__init__(**{"dtype": "float32", "trainable": False, **kwargs})
        self.rate, self.mels = rate, mels
        self._frame, self._step = round(_FRAME_SECONDS * rate), round(_STEP_SECONDS * rate)
        self._waves = _waves(self._frame)
        self._bands = _bands(rate, self._frame, mels)

    def call(self, samples: Any) -> Any:
        """The frames. There is one for each 10 ms; the last ones are filled up with zeros."""
        outside = self._frame - self._step
        samples = ops.pad(ops.cast(samples, "float32"), [(0, 0), (0, outside)])
        waves = ops.conv(samples[..., None], self._waves, strides=self._step, padding="valid")
        real, imaginary = ops.split(waves, 2, axis=-1)
        power = ops.matmul(ops.square(real) + ops.square(imaginary), self._bands)
        loudness = ops.log10(ops.maximum(power, _SMALLEST))
        loudest = ops.max(loudness, axis=(1, 2), keepdims=True)
        return ops.maximum(loudness - loudest, -_RANGE) / (_RANGE / 2) + 1

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """`(n, frames, mels)`."""
        num, samples = input_shape
        return num, None if samples is None else max(0, samples // self._step), self.mels

    def get_config(self) -> dict[str, Any]:
        """The arguments of the constructor."""
        return super().get_config() | {"rate": self.rate, "mels": self.mels}


def _waves(frame: int) -> np.ndarray:
    """Cosine and sine of each frequency, under a Hann window: float32 `[frame, 1, 2 * bins]`."""
    time = np.arange(frame)
    angle = 2 * np.pi * np.outer(time, np.arange(frame // 2 + 1)) / frame
    window = 0.5 - 0.5 * np.cos(2 * np.pi * time / frame)
    both = np.concatenate([np.cos(angle), np.sin(angle)], axis=1) * window[:, None]
    return (both / window.sum())[:, None].astype(np.float32)


def _bands(rate: int, frame: int, mels: int) -> np.ndarray:
    """How much each frequency belongs to each band: triangles, evenly spaced in mel."""

    def mel(hertz: Any) -> Any:
        return 2595 * np.log10(1 + np.asarray(hertz) / 700)

    frequencies = mel(np.arange(frame // 2 + 1) * rate / frame)
    edges = np.linspace(mel(_LOWEST), mel(rate / 2), mels + 2)
    rising = (frequencies[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - frequencies[:, None]) / (edges[2:] - edges[1:-1])
    bands = np.maximum(0, np.minimum(rising, falling))
    # A narrow band between two frequencies takes the nearest one.
    for empty in np.flatnonzero(bands.sum(axis=0) == 0):
        bands[np.abs(frequencies - edges[empty + 1]).argmin(), empty] = 1
    return bands.astype(np.float32)
