"""Reads a table: its rows as arrays of numbers, categories and words."""

from __future__ import annotations

import numpy as np

import kerasdist
from kerasdist import KerasdistError

from .config import open_table

EXAMPLE_SUFFIXES = (".csv", ".tsv", ".parquet")


def build_data(config, split: str):
    """`(arrays by name, targets)` of "train" or "validation"."""
    if split not in ("train", "validation"):
        raise KerasdistError(
            f"Received the split {split!r}, but a table has 'train' and 'validation' only. "
            "Expected one of these. To evaluate on another file, name it with `--data-dir`."
        )
    return getattr(open_table(config), split)


def find_source(config) -> str:
    """Where the data comes from."""
    return "synthetic" if config.data_dir is None else "files"


def describe(config) -> dict[str, str]:
    """What was found in the data, to say before the training."""
    found = open_table(config).describe()
    return {"data": "no --data-dir: an example is made", **found} if not config.data_dir else found


def read_rows(config, path) -> dict[str, np.ndarray]:
    """Reads the rows of a file as the network gets them, for `kerasdist predict`."""
    reader = kerasdist.Table(
        path, header=config.header, skip_bad=config.skip_bad, schema=config.schema
    )
    return reader.read(path)
