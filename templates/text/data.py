"""Reads texts from one folder per class, as the numbers of their words."""

from __future__ import annotations

import numpy as np

import kerasdist

from .config import open_folder

EXAMPLE_SUFFIXES = (".txt",)


def build_data(config, split: str):
    """`(words, class numbers)` of the texts of "train", "validation" or "test", or of "all"."""
    return getattr(open_folder(config), split)


def find_source(config) -> str:
    """Where the data comes from."""
    return "synthetic" if config.data_dir is None else "files"


def describe(config) -> dict[str, str]:
    """What was found in the data, to say before the training."""
    found = open_folder(config).describe()
    return {"data": "no --data-dir: examples are made", **found} if not config.data_dir else found


def describe_examples(config, split: str, positions) -> list[dict[str, str]]:
    """The files of some texts, and how they begin, for the report."""
    return open_folder(config).describe_examples(split, positions)


def read_examples(config, paths) -> dict[str, np.ndarray]:
    """Reads text files as the network gets them, for `kerasdist predict`."""
    return kerasdist.TextFolder.read_texts(paths, config.schema)


def raw_inputs(config):
    """The same in the graph of an exported model, from strings: its input is called `text`."""
    return kerasdist.Table.raw_inputs(config.schema)


def describe_input(config) -> str:
    """What a program must give to an exported model."""
    return (
        "the numbers of words; `schema` in the run's config.json has the vocabulary. A SavedModel "
        "also takes texts as they are"
    )
