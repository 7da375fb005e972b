"""The settings. Each is an option of `kerasdist fit`. Do not import TensorFlow in this file."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

import kerasdist

from .example import made_folder

# About how many steps a training should have, if its number of epochs is not given.
STEPS = 600
# If a run is trained again with other values of these, all is learnt from the data anew.
LEARN_ANEW = ("validation_split", "split_seed")
# With other values of these, the words of the run stay, and its data is counted again.
LEARN_KEEPING = ("data_dir", "skip_bad")


@dataclass(frozen=True)
class Config(kerasdist.OptimizerConfig):
    """The settings of the recipe, with defaults and help texts."""

    embedding: int = field(default=64, metadata={"help": "numbers that stand for a word"})
    filters: int = field(default=64, metadata={"help": "patterns of three words; 0 for none"})
    dropout: float = field(default=0.5, metadata={"help": "dropout rate before the last layer"})
    batch_size: int | None = field(
        default=None, metadata={"help": "examples per step, over all devices", "from_data": True}
    )
    epochs: int | None = field(
        default=None, metadata={"help": "passes over the training data", "from_data": True}
    )
    learning_rate: float = 0.003
    schedule: str = "cosine"
    data_dir: str | None = field(
        default=None, metadata={"help": "a folder with one folder of .txt files per class"}
    )
    validation_split: float = field(
        default=0.2,
        metadata={"help": "the part for validation, if there is no folder such as val for it"},
    )
    split_seed: int = field(default=0, metadata={"help": "decides which texts are that part"})
    skip_bad: bool = field(
        default=False, metadata={"help": "leave out files that cannot be used, and name them"}
    )
    # What `learn` finds in the data. A run keeps it.
    class_names: tuple[str, ...] = field(default=(), metadata={"learnt": True})
    schema: dict = field(default_factory=dict, metadata={"learnt": True})
    num_train: int = field(default=0, metadata={"learnt": True})


def open_folder(config) -> kerasdist.TextFolder:
    """The texts in --data-dir, or the examples."""
    return kerasdist.TextFolder(
        config.data_dir or made_folder(),
        validation_split=config.validation_split,
        seed=config.split_seed,
        skip_bad=config.skip_bad,
        schema=config.schema or None,
    )


def learn(config) -> dict:
    """The settings that come from the data."""
    folder = open_folder(config)
    size = config.batch_size or (32 if folder.num_train < 20_000 else 128)
    epochs = ceil(STEPS / ceil(folder.num_train / size))
    return {
        "class_names": folder.class_names,
        "schema": folder.schema.to_json(),
        "num_train": folder.num_train,
        "batch_size": size,
        "epochs": config.epochs or min(max(epochs, 4), 20),
    }
