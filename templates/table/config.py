"""The settings. Each is an option of `kerasdist fit`. Do not import TensorFlow in this file."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import Literal

import kerasdist

from .example import made_table

LEARNING_RATE = 0.003
# About how many steps a training should have, if its number of epochs is not given.
STEPS = 300
# If a run is trained again with other values of these, all is learnt from the data anew.
LEARN_ANEW = (
    *("target", "task", "ignore", "numbers", "categories", "texts"),
    *("header", "validation_split", "split_seed"),
)
# With other values of these, the columns of the run stay, and its data is counted again.
LEARN_KEEPING = ("data_dir", "skip_bad")


@dataclass(frozen=True)
class Config(kerasdist.OptimizerConfig):
    """The settings of the recipe, with defaults and help texts."""

    target: str | None = field(
        default=None, metadata={"help": "the column to predict", "from_data": True}
    )
    task: Literal["classification", "regression", None] = field(
        default=None,
        metadata={"help": "classification or regression (default: found by the target's values)"},
    )
    ignore: tuple[str, ...] = field(default=(), metadata={"help": "columns to leave out"})
    numbers: tuple[str, ...] = field(
        default=(), metadata={"help": "columns that are numbers, whatever they look like"}
    )
    categories: tuple[str, ...] = field(default=(), metadata={"help": "columns of categories"})
    texts: tuple[str, ...] = field(default=(), metadata={"help": "columns of texts"})
    units: int | None = field(
        default=None, metadata={"help": "units of the two hidden layers", "from_data": True}
    )
    embedding: int = field(default=8, metadata={"help": "numbers that stand for a category"})
    dropout: float = field(default=0.3, metadata={"help": "dropout rate of the hidden layers"})
    batch_size: int | None = field(
        default=None, metadata={"help": "examples per step, over all devices", "from_data": True}
    )
    epochs: int | None = field(
        default=None, metadata={"help": "passes over the training data", "from_data": True}
    )
    optimizer: str = "adamw"
    learning_rate: float = LEARNING_RATE
    weight_decay: float | None = field(
        default=None,
        metadata={
            "help": "fraction of a weight that each step subtracts, times the learning rate",
            "from_data": True,
        },
    )
    weight_decay_on: str = "kernel|embeddings"
    schedule: str = "cosine"
    data_dir: str | None = field(default=None, metadata={"help": "a .csv, .tsv or .parquet file"})
    validation_split: float = field(
        default=0.2, metadata={"help": "the part of the rows for validation"}
    )
    split_seed: int = field(default=0, metadata={"help": "decides which rows are that part"})
    header: bool | None = field(
        default=None,
        metadata={
            "help": "the first line of a CSV file has the names of the columns; by default a line "
            "of values is refused. --no-header: there is no such line",
            "without_value": "true",
        },
    )
    skip_bad: bool = field(
        default=False,
        metadata={"help": "leave out lines with too many or too few values, and count them"},
    )
    # What `learn` finds in the data. A run keeps it.
    class_names: tuple[str, ...] = field(default=(), metadata={"learnt": True})
    schema: dict = field(default_factory=dict, metadata={"learnt": True})
    num_train: int = field(default=0, metadata={"learnt": True})


def open_table(config) -> kerasdist.Table:
    """The table in --data-dir, or the example."""
    return kerasdist.Table(
        config.data_dir or made_table(),
        target=config.target,
        task=config.task,
        ignore=config.ignore,
        numbers=config.numbers,
        categories=config.categories,
        texts=config.texts,
        validation_split=config.validation_split,
        seed=config.split_seed,
        header=config.header,
        skip_bad=config.skip_bad,
        schema=config.schema or None,
    )


def learn(config) -> dict:
    """The settings that come from the data."""
    table = open_table(config)
    rows = table.num_train
    size = config.batch_size or next(
        (size for most, size in ((2_000, 32), (20_000, 128), (200_000, 512)) if rows < most), 2048
    )
    epochs = ceil(STEPS / ceil(rows / size))
    return {
        "target": table.schema.target.name,
        "class_names": table.class_names,
        "schema": table.schema.to_json(),
        "num_train": rows,
        "batch_size": size,
        "epochs": config.epochs or min(max(epochs, 12), 60),
        "weight_decay": weight_decay(config, rows),
        "units": config.units or (64 if rows < 5_000 else 128 if rows < 100_000 else 256),
    }


def weight_decay(config, rows: int) -> float:
    """The given one, or more for fewer rows: these are easily learnt by heart."""
    if config.weight_decay is not None:
        return config.weight_decay
    # A step multiplies it by the learning rate: a higher one, as SGD needs, must not shrink more.
    return 2_000 / max(rows, 700) * LEARNING_RATE / max(config.learning_rate, LEARNING_RATE)
