"""`SoundFolder`: one folder of WAV files per class, read from the disk batch by batch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kerasdist.data.folders.file_source import FileSource
from kerasdist.data.folders.sound_reader import SoundReader
from kerasdist.recipes.own_data import sound_files, sound_sizes
from kerasdist.recipes.own_data.checked_folders import read_checked
from kerasdist.recipes.own_data.kinds import SOUNDS
from kerasdist.recipes.own_data.splits import SPLITS, Split


class SoundFolder:
    """WAV files in one folder per class, or in such folders below `train`, `val` and `test`.

    The files are found and looked at here, and read when a batch needs them, by several threads.
    Each split is a source for `kerasdist.fit` of `(sound, class number)`, where the sound is
    float32 `[samples]`: mono, of one rate and length (see `SoundReader`). Without a folder for
    validation, a part of each class is drawn for it.

    Args:
        path: The folder.
        rate: Samples per second; by default that of the files, but at most 16,000.
        seconds: The length of the sounds; by default that of the files, but at most 10.
        class_names: The classes and their order, if they are known; by default the folders, sorted.
        validation_split: The part for validation, if there is no folder for it.
        seed: Decides which files these are.
        skip_bad: Whether to leave out files that cannot be used, instead of refusing the folder.
        split: What was drawn for validation before, from the `split` of the folder that a model was
            trained on. Then none of its training files are for validation if others were added or
            removed.

    Attributes:
        class_names: The name of each class.
        rate: Samples per second.
        seconds: The length of the sounds.
        train: The training data.
        validation: The validation data; None if there is none.
        test: The test data; None if there is none.
        all: All of these data.
        skipped: What is wrong with each file that was left out, by its path.
        split: What was drawn for validation, as plain values; empty if nothing was.

    Example:
        >>> import numpy as np, pathlib, tempfile, tensorflow as tf, kerasdist
        >>> path = pathlib.Path(tempfile.mkdtemp())
        >>> for i in range(20):
        ...     tone = np.sin(np.arange(800) * (0.2 + i % 2))[:, None].astype("float32")
        ...     name = path / ("low", "high")[i % 2] / f"{i}.wav"
        ...     tf.io.write_file(str(name), tf.audio.encode_wav(tone, 8000))
        >>> folder = kerasdist.SoundFolder(path)
        >>> folder.class_names, folder.rate, folder.seconds, len(folder.train)
        (('high', 'low'), 8000, 0.1, 16)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        rate: int | None = None,
        seconds: float | None = None,
        class_names: Sequence[str] | None = None,
        validation_split: float = 0.2,
        seed: int = 0,
        skip_bad: bool = False,
        split: Mapping[str, Any] | None = None,
    ):
        if rate is not None and seconds is not None:
            SoundReader(rate, seconds)  # Refuses bad values before the files are read.
        self._checked = read_checked(
            Path(path).expanduser(),
            SOUNDS,
            sound_files.problem,
            skip_bad=skip_bad,
            class_names=class_names,
            validation_split=validation_split,
            seed=seed,
            drawn=Split.from_json(split) if split else None,
        )
        folders = self._checked.folders
        self.class_names, self.skipped = folders.class_names, self._checked.skipped
        self.split = self._checked.split
        self._headers = sound_sizes.headers(self._checked.sample())
        self.rate = sound_sizes.choose_rate(self._headers) if rate is None else rate
        self.seconds = sound_sizes.choose_seconds(self._headers) if seconds is None else seconds
        self.reader = SoundReader(self.rate, self.seconds)
        self.train, self.validation, self.test = (
            FileSource(folders.path, folders.splits[split], self.reader.decoded, skip_bad=skip_bad)
            if split in folders.splits
            else None
            for split in SPLITS
        )
        self.all = FileSource(folders.path, folders.all, self.reader.decoded, skip_bad=skip_bad)

    def describe(self) -> dict[str, str]:
        """What was found, in words by title: classes and counts, sizes, split."""
        sizes = sound_sizes.in_words(self._headers)
        used = f"read as {self.seconds:g} s, {self.rate:,} Hz, mono"
        return self._checked.describe(f"{sizes}; {used}")
