"""Reads a table: its rows as arrays of numbers, categories and words."""

from __future__ import annotations

import numpy as np

import kerasdist

from .config import open_table

EXAMPLE_SUFFIXES = (".csv", ".tsv", ".parquet")


def build_data(config, split: str):
    """`(arrays by name, targets)` of the rows of "train" or "validation", or of "all"."""
    return getattr(open_table(config), split)


def find_source(config) -> str:
    """Where the data comes from."""
    return "synthetic" if config.data_dir is None else "files"


def describe(config) -> dict[str, str]:
    """What was found in the data, to say before the training."""
    found = open_table(config).describe()
    return {"data": "no --data-dir: an example is made", **found} if not config.data_dir else found


def describe_examples(config, split: str, positions) -> list[dict[str, str]]:
    """The line and the first values of some rows, for the report."""
    return open_table(config).describe_examples(split, positions)


def target_names(config) -> tuple[str]:
    """What a regression predicts, for the report."""
    return (config.target,)


def read_rows(config, path) -> dict[str, np.ndarray]:
    """Reads the rows of a file as the network gets them, for `kerasdist predict`."""
    return open_other(config, path).read(path)


def row_numbers(config, path):
    """The number of each of these rows in the file, if --skip-bad left out some; else None."""
    return open_other(config, path).row_numbers(path)


def raw_inputs(config):
    """The same in the graph of an exported model, from strings and numbers: one input a column."""
    return kerasdist.Table.raw_inputs(config.schema)


def describe_input(config) -> str:
    """What a program must give to an exported model."""
    return (
        "numbers, categories and words as kerasdist encodes them; `schema` in the run's "
        "config.json says how. A SavedModel also takes the columns as they are"
    )


def open_other(config, path) -> kerasdist.Table:
    """Another file with the same columns."""
    return kerasdist.Table(
        path, header=config.header, skip_bad=config.skip_bad, schema=config.schema
    )
