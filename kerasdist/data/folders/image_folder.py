"""`ImageFolder`: one folder of images per class, read from the disk batch by batch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kerasdist.data.folders.file_source import FileSource
from kerasdist.data.folders.gray_levels import dark_16_bits
from kerasdist.data.folders.image_reader import ImageReader
from kerasdist.errors import KerasdistError
from kerasdist.recipes.own_data import image_files
from kerasdist.recipes.own_data.checked_folders import read_checked
from kerasdist.recipes.own_data.image_sizes import choose_size, in_words
from kerasdist.recipes.own_data.kinds import IMAGES
from kerasdist.recipes.own_data.splits import SPLITS, Split


class ImageFolder:
    """Images in one folder per class, or in such folders below `train`, `val` and `test`.

    The files are found and looked at here, and decoded when a batch needs them, by several threads.
    Each split is a source for `kerasdist.fit` of `(image, class number)`, where the image is
    uint8 `[height, width, 3]`. Without a folder for validation, a part of each class is drawn for
    it; which files, depends on their names and the seed alone.

    Args:
        path: The folder.
        image_size: A side, or `(height, width)`, that images are resized to; by default a size that
            suits the files.
        class_names: The classes and their order, if they are known; by default the folders, sorted.
        validation_split: The part for validation, if there is no folder for it.
        seed: Decides which files these are.
        skip_bad: Whether to leave out files that cannot be used, instead of refusing the folder.
        split: What was drawn for validation before, from the `split` of the folder that a model was
            trained on. Then none of its training files are for validation if others were added or
            removed.

    Attributes:
        class_names: The name of each class.
        image_size: `(height, width)`.
        train: The training data.
        validation: The validation data; None if there is none.
        test: The test data; None if there is none.
        all: All of these data.
        skipped: What is wrong with each file that was left out, by its path.
        split: What was drawn for validation, as plain values; empty if nothing was.
        flips: Whether left and right may be swapped: photos whose classes do not name a side.

    Example:
        >>> import numpy as np, pathlib, tempfile, tensorflow as tf, kerasdist
        >>> path = pathlib.Path(tempfile.mkdtemp())
        >>> for i in range(20):
        ...     image = np.full((9, 9, 3), 200 * (i % 2), "uint8")
        ...     name = path / ("dark", "light")[i % 2] / f"{i}.png"
        ...     tf.io.write_file(str(name), tf.io.encode_png(image))
        >>> folder = kerasdist.ImageFolder(path)
        >>> folder.class_names, folder.image_size, len(folder.train), len(folder.validation)
        (('dark', 'light'), (9, 9), 16, 4)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        image_size: int | tuple[int, int] | None = None,
        class_names: Sequence[str] | None = None,
        validation_split: float = 0.2,
        seed: int = 0,
        skip_bad: bool = False,
        split: Mapping[str, Any] | None = None,
    ):
        given = None if image_size is None else _as_size(image_size)
        self._checked = read_checked(
            Path(path).expanduser(),
            IMAGES,
            image_files.problem,
            skip_bad=skip_bad,
            class_names=class_names,
            validation_split=validation_split,
            seed=seed,
            drawn=Split.from_json(split) if split else None,
        )
        folders = self._checked.folders
        self.class_names, self.skipped = folders.class_names, self._checked.skipped
        self.split = self._checked.split
        self._sample = self._checked.sample()
        self.image_size = given or choose_size(self._sample)
        self.reader = ImageReader(self.image_size)
        self.train, self.validation, self.test = (
            FileSource(folders.path, folders.splits[split], self.reader.decoded, skip_bad=skip_bad)
            if split in folders.splits
            else None
            for split in SPLITS
        )
        self.all = FileSource(folders.path, folders.all, self.reader.decoded, skip_bad=skip_bad)

    def describe(self) -> dict[str, str]:
        """What was found, in words by title: classes and counts, sizes, split."""
        height, width = self.image_size
        sizes = in_words(self._sample)
        found = self._checked.describe(f"{sizes}; resized to {width} x {height}")
        careful = dark_16_bits(self._sample)
        return found | ({"careful": careful} if careful else {})

    @property
    def flips(self) -> bool:
        """Whether left and right may be swapped: photos whose classes do not name a side."""
        sides = any(side in name.lower() for name in self.class_names for side in ("left", "right"))
        photos = sum(p.suffix.lower() in (".jpg", ".jpeg", ".webp") for p in self._sample)
        return 2 * photos > len(self._sample) and not sides


def _as_size(image_size: int | tuple[int, int]) -> tuple[int, int]:
    size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    is_pair = len(size) == 2 and all(
        isinstance(side, int) and not isinstance(side, bool) and side >= 1 for side in size
    )
    if not is_pair:
        raise KerasdistError(
            f"Received `image_size={image_size!r}`. Expected a side of at least 1 pixel, or "
            "(height, width). Use for example 96."
        )
    return size[0], size[1]
