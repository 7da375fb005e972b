"""The data provider of the TF1 example: each call returns a batch of clips as NumPy arrays."""

from __future__ import annotations

import glob
from pathlib import Path

import numpy as np

from kerasdist import KerasdistError

from .data import pad
from .features import log_mel
from .recordings import read_clip


class AudioDataProviderNumpy:
    """Reads WAV files in the order of their names, again in each pass. Does not shuffle.

    `get_batch_data` returns `(frames, length, label)`, in the order of `AudioRNN`'s fields, and
    None at the end of a pass. The last batch of a pass may be smaller.

    Example:
        >>> provider = AudioDataProviderNumpy("recordings/*.wav", batch_size=32)  # doctest: +SKIP
        >>> frames, length, label = provider.get_batch_data()  # doctest: +SKIP
    """

    def __init__(self, data_pattern: str, batch_size: int = 32):
        """Finds the files. They are read batch by batch, later.

        Args:
            data_pattern: A pattern of file names such as 'recordings/*.wav'.
            batch_size: Clips per batch.
        """
        self.batch_size = batch_size
        self.paths = sorted(glob.glob(str(Path(data_pattern).expanduser())))
        if not self.paths:
            raise KerasdistError(
                f"Received `data_pattern` {data_pattern!r}, which no file matches. Expected WAV "
                "files such as 7_jackson_32.wav. Correct the pattern, and quote it in a shell."
            )
        self.next = 0

    def get_batch_data(self) -> tuple[np.ndarray, np.ndarray, np.ndarray] | None:
        """Returns the next batch, or None once at the end of each pass."""
        if self.next >= len(self.paths):
            self.next = 0
            return None
        paths = self.paths[self.next : self.next + self.batch_size]
        clips = [read_clip(Path(path)) for path in paths]
        self.next += len(paths)
        batch = pad([log_mel(clip.samples) for clip in clips])
        return batch["frames"], batch["length"], np.array([clip.digit for clip in clips])
