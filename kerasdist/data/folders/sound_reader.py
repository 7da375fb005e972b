"""`SoundReader`: WAV files as arrays of one rate and length, and the same in a TensorFlow graph."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kerasdist.data.folders.file_source import BadFileError
from kerasdist.errors import KerasdistError
from kerasdist.recipes.own_data.sound_files import BadSoundError, Sound, read_header

if TYPE_CHECKING:
    import tensorflow as tf


@dataclass(frozen=True)
class SoundReader:
    """Reads WAV files as sounds of one rate and length: float32 `[samples]` from -1 to 1.

    Takes 8, 16, 24 and 32 bits and floats, any number of channels (their mean is taken) and any
    rate (it is converted). A longer sound is cut at its end, a shorter one is filled up with zeros.

    Args:
        rate: Samples per second.
        seconds: The length.

    Example:
        >>> import numpy as np, tempfile, tensorflow as tf, kerasdist
        >>> path = tempfile.mkdtemp() + "/tone.wav"
        >>> tone = np.sin(np.arange(4410) / 10)[:, None].astype("float32")
        >>> tf.io.write_file(path, tf.audio.encode_wav(tone, 44100))
        >>> reader = kerasdist.SoundReader(rate=8000, seconds=0.2)
        >>> reader.read(path).shape, float(reader.read(path)[800:].max())
        ((1600,), 0.0)
        >>> reader.decode(tf.stack([tf.io.read_file(path)])).shape  # In a graph, too.
        TensorShape([1, 1600])
    """

    rate: int
    seconds: float

    def __post_init__(self) -> None:
        """Refuses a rate or a length that is not above 0."""
        for name in ("rate", "seconds"):
            value = getattr(self, name)
            if isinstance(value, bool) or not value > 0 or (name == "rate" and value % 1):
                what = "a whole number" if name == "rate" else "a number"
                raise KerasdistError(
                    f"Received `{name}={value!r}`. Expected {what} above 0. Use for example "
                    f"`{name}={16000 if name == 'rate' else 1.5}`."
                )

    @property
    def length(self) -> int:
        """The number of samples of each sound."""
        return max(1, round(self.rate * self.seconds))

    def read(self, path: str | os.PathLike[str]) -> np.ndarray:
        """Reads a file.

        Args:
            path: The file.

        Returns:
            float32 `[samples]`.
        """
        try:
            return self.decoded(Path(path))
        except BadFileError as error:
            raise KerasdistError(
                f"The file {str(path)!r} {error}. Expected a complete WAV file with plain samples. "
                "Convert it, or leave it out."
            ) from error

    def decoded(self, path: Path) -> np.ndarray:
        """`read`, with the error that says only what is wrong."""
        try:
            sound = read_header(path)
            # What comes later is not used, so it is not read.
            num = min(sound.length, int(np.ceil(self.seconds * sound.rate)))
            samples = _samples(path, sound, num)
        except BadSoundError as error:
            raise BadFileError(str(error)) from error
        except OSError as error:
            raise BadFileError(f"cannot be read ({error.strerror})") from error
        if not np.isfinite(samples).all():
            raise BadFileError("has samples that are NaN or infinite")
        samples = resampled(samples.mean(axis=1), sound.rate, self.rate)[: self.length]
        return np.pad(samples, (0, self.length - len(samples))).astype(np.float32)

    def decode(self, contents: Any) -> tf.Tensor:
        """Decodes the bytes of files in a TensorFlow graph, for a model that is served.

        Args:
            contents: A string tensor `[n]`.

        Returns:
            A float32 tensor `[n, samples]`.
        """
        from kerasdist.data.folders.sound_graph import decode

        return decode(contents, self.rate, self.seconds, self.length)


def _samples(path: Path, sound: Sound, num: int) -> np.ndarray:
    """The first samples of a file: float64 `[num, channels]` from -1 to 1."""
    width = sound.bits // 8
    with open(path, "rb") as file:
        file.seek(sound.start)
        content = file.read(num * sound.channels * width)
    content = content[: len(content) // (sound.channels * width) * sound.channels * width]
    if sound.is_float:
        samples = np.frombuffer(content, f"<f{width}").astype(np.float64)
    elif sound.bits == 8:
        samples = np.frombuffer(content, np.uint8) / 128.0 - 1
    elif sound.bits == 24:
        # As the upper three bytes of 32 bits.
        padded = np.zeros((len(content) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(content, np.uint8).reshape(-1, 3)
        samples = padded.view("<i4")[:, 0] / 2.0**31
    else:
        samples = np.frombuffer(content, f"<i{width}") / 2.0 ** (sound.bits - 1)
    return samples.reshape(-1, sound.channels)


def resampled(samples: np.ndarray, rate: int, wanted: int) -> np.ndarray:
    """Converts samples to another rate: the same frequencies, as far as both rates have them.

    Example:
        >>> tone = np.sin(2 * np.pi * np.arange(400) / 40)
        >>> close = np.sin(2 * np.pi * np.arange(200) / 20)
        >>> bool(np.abs(resampled(tone, 8000, 4000) - close)[20:-20].max() < 0.01)
        True
    """
    if rate == wanted:
        return samples
    # Whole seconds have a whole number of samples at both rates. The zeros also keep the end of a
    # sound from ringing into its start.
    seconds = -(-len(samples) // rate)
    padded = np.pad(samples, (0, seconds * rate - len(samples)))
    kept = np.fft.rfft(padded)[: seconds * wanted // 2 + 1]
    converted = np.fft.irfft(kept, seconds * wanted) * (wanted / rate)
    return converted[: max(1, round(len(samples) * wanted / rate))]
