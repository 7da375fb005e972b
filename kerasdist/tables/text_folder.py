"""`TextFolder`: one folder of text files per class, as arrays of words."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kerasdist.recipes.own_data.checked_folders import read_checked
from kerasdist.recipes.own_data.kinds import TEXTS
from kerasdist.recipes.own_data.splits import TRAIN, VALIDATION
from kerasdist.tables.files.text_file import problem, read_text
from kerasdist.tables.kinds import Kinds
from kerasdist.tables.learning import as_targets, encode, learn
from kerasdist.tables.reading.builders import words_in
from kerasdist.tables.reading.raw import Raw
from kerasdist.tables.schema import Column, Schema, Target
from kerasdist.tables.wording import shortened

# The only column of the table that the files are.
TEXT = Column("text", "text")
_AT_ONCE = 512
# Of a text in a report, in characters.
_MOST_SHOWN = 200


class TextFolder:
    """Text files in one folder per class, or in such folders below `train`, `val` and `test`.

    The words of all files are in memory, four bytes each, at most 512 of a file. Which words the
    model knows is learnt from the training files alone. Reading does not import TensorFlow.

    Args:
        path: The folder.
        validation_split: The part for validation, if there is no folder for it.
        seed: Decides which files these are.
        skip_bad: Whether to leave out files that cannot be used, instead of refusing the folder.
        schema: What was learnt before, from the `schema` of another folder. Nothing is then learnt.

    Attributes:
        class_names: The name of each class.
        schema: What was learnt.
        skipped: What is wrong with each file that was left out, by its path.

    Example:
        >>> import pathlib, tempfile, kerasdist
        >>> path = pathlib.Path(tempfile.mkdtemp())
        >>> for i in range(20):
        ...     folder = path / ("bad", "good")[i % 2]
        ...     folder.mkdir(exist_ok=True)
        ...     _ = (folder / f"{i}.txt").write_text(f"This is {('awful', 'great')[i % 2]}!")
        >>> folder = kerasdist.TextFolder(path)
        >>> folder.class_names, folder.schema.vocabulary, folder.train[0]["words"].shape
        (('bad', 'good'), ('is', 'this', 'awful', 'great'), (16, 3))
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        validation_split: float = 0.2,
        seed: int = 0,
        skip_bad: bool = False,
        schema: Schema | Mapping[str, Any] | None = None,
    ):
        if schema is not None and not isinstance(schema, Schema):
            schema = Schema.from_json(schema)
        self._checked = read_checked(
            Path(path).expanduser(),
            TEXTS,
            problem,
            skip_bad=skip_bad,
            class_names=None if schema is None else schema.target.classes,
            validation_split=validation_split,
            seed=seed,
            drawn=None if schema is None else schema.split,
        )
        self._folders = self._checked.folders
        self.class_names, self.skipped = self._folders.class_names, self._checked.skipped
        self.schema = schema or self._learnt()
        if self.schema.split is None:
            self.schema = dataclasses.replace(self.schema, split=self._folders.drawn)

    def _learnt(self) -> Schema:
        raw = self._raw(TRAIN)
        target = Target("class", "classification", classes=self.class_names)
        return learn(raw, Kinds((TEXT,)), target, np.ones(raw.rows, bool))

    @functools.cached_property
    def train(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """The texts for training: `({"words": word numbers}, class numbers)`."""
        return self._encoded(self._raw(TRAIN))

    @functools.cached_property
    def validation(self) -> tuple[dict[str, np.ndarray], np.ndarray] | None:
        """The texts for validation; None if there are none."""
        return self._split(VALIDATION)

    @functools.cached_property
    def test(self) -> tuple[dict[str, np.ndarray], np.ndarray] | None:
        """The texts of the folder `test`; None if there is none."""
        return self._split("test")

    @property
    def all(self) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """All texts."""
        files = self._folders.all
        return self._encoded(self._read(files.names, files.labels))

    @property
    def num_train(self) -> int:
        """The number of texts for training."""
        return len(self._folders.splits[TRAIN])

    def read(self, paths: Iterable[str | os.PathLike[str]]) -> dict[str, np.ndarray]:
        """The arrays of other text files, one row each.

        Args:
            paths: The files.
        """
        return read_texts(paths, self.schema)

    @staticmethod
    def read_texts(
        paths: Iterable[str | os.PathLike[str]], schema: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        """The arrays of text files, without a folder.

        Args:
            paths: The files.
            schema: What was learnt, as plain values.
        """
        return read_texts(paths, schema)

    def describe(self) -> dict[str, str]:
        """What was found, in words by title: classes and counts, words, split."""
        known, most = len(self.schema.vocabulary), self.schema.num_words
        return self._checked.describe(
            f"the first {most} words of a text are read; {known:,} words that come twice or more"
        )

    def describe_examples(self, split: str, positions: Sequence[int]) -> list[dict[str, str]]:
        """The names of some files, and how their texts begin.

        Args:
            split: "train", "validation" or "test".
            positions: The numbers of the texts in the split.
        """
        names = [self._folders.splits[split].names[i] for i in positions]
        texts = [read_text(self._folders.path / name) for name in names]
        return [
            {"file": name, "text": shortened(text, _MOST_SHOWN)}
            for name, text in zip(names, texts, strict=True)
        ]

    def _split(self, split: str) -> tuple[dict[str, np.ndarray], np.ndarray] | None:
        return self._encoded(self._raw(split)) if split in self._folders.splits else None

    def _raw(self, split: str) -> Raw:
        files = self._folders.splits[split]
        return self._read(files.names, files.labels)

    def _read(self, names: Sequence[str], labels: Sequence[int]) -> Raw:
        paths = [self._folders.path / name for name in names]
        return _raw_of(paths, np.array(labels, np.int64))

    def _encoded(self, raw: Raw) -> tuple[dict[str, np.ndarray], np.ndarray]:
        return encode(raw, self.schema), as_targets(raw, self.schema)


def read_texts(
    paths: Iterable[str | os.PathLike[str]], schema: Schema | Mapping[str, Any]
) -> dict[str, np.ndarray]:
    """The arrays of text files for a model that learnt a schema."""
    if not isinstance(schema, Schema):
        schema = Schema.from_json(schema)
    return encode(_raw_of([Path(path) for path in paths], None), schema)


def _raw_of(paths: Sequence[Path], labels: np.ndarray | None) -> Raw:
    blocks = (
        [read_text(path) for path in paths[first : first + _AT_ONCE]]
        for first in range(0, len(paths), _AT_ONCE)
    )
    return Raw(len(paths), {}, words_in(blocks), labels)
