"""The settings. Each is an option of `kerasdist fit`. Do not import TensorFlow in this file."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

import kerasdist

# What is made without --data-dir, to try the recipe.
MADE_CLASSES = ("falling", "rising", "steady")
NUM_MADE = {"train": 600, "validation": 200}
# About how many steps a training should have, if its number of epochs is not given.
STEPS = 400
# If a run is trained again with other values of these, its classes stay, and its data is counted
# again.
LEARN_KEEPING = ("data_dir", "validation_split", "split_seed", "skip_bad")


@dataclass(frozen=True)
class Config(kerasdist.OptimizerConfig):
    """The settings of the recipe, with defaults and help texts."""

    rate: int | None = field(
        default=None,
        metadata={"help": "samples per second that sounds are converted to", "from_data": True},
    )
    seconds: float | None = field(
        default=None,
        metadata={"help": "the length that sounds are cut or filled up to", "from_data": True},
    )
    mels: int = field(default=48, metadata={"help": "number of mel bands"})
    width: int = field(default=16, metadata={"help": "filters of the first convolution"})
    dropout: float = field(default=0.2, metadata={"help": "dropout rate before the last layer"})
    augment: bool = field(
        default=True, metadata={"help": "move training sounds in time, and add noise"}
    )
    batch_size: int = field(default=32, metadata={"help": "examples per step, over all devices"})
    epochs: int | None = field(
        default=None, metadata={"help": "passes over the training data", "from_data": True}
    )
    learning_rate: float = 0.003
    schedule: str = "cosine"
    data_dir: str | None = field(
        default=None, metadata={"help": "a folder with one folder of WAV files per class"}
    )
    validation_split: float = field(
        default=0.2,
        metadata={"help": "the part for validation, if there is no folder such as val for it"},
    )
    split_seed: int = field(default=0, metadata={"help": "decides which sounds are that part"})
    skip_bad: bool = field(
        default=False, metadata={"help": "leave out files that cannot be used, and name them"}
    )
    # What `learn` finds in the data. A run keeps it.
    class_names: tuple[str, ...] = field(default=(), metadata={"learnt": True})
    num_train: int = field(default=0, metadata={"learnt": True})
    skipped: tuple[str, ...] = field(default=(), metadata={"learnt": True})
    split: dict = field(default_factory=dict, metadata={"learnt": True})


def open_folder(config) -> kerasdist.SoundFolder:
    """The sounds in --data-dir."""
    return kerasdist.SoundFolder(
        config.data_dir,
        rate=config.rate,
        seconds=config.seconds,
        class_names=config.class_names or None,
        validation_split=config.validation_split,
        seed=config.split_seed,
        skip_bad=config.skip_bad,
        split=config.split,
    )


def learn(config) -> dict:
    """The settings that come from the data."""
    if config.data_dir is None:
        found = {"class_names": MADE_CLASSES, "num_train": NUM_MADE["train"], "skipped": ()}
        found |= {"split": {}, "rate": config.rate or 16000, "seconds": config.seconds or 0.5}
    else:
        folder = open_folder(config)
        found = {
            "class_names": folder.class_names,
            "num_train": len(folder.train),
            "skipped": tuple(folder.skipped),
            "split": folder.split,
            "rate": folder.rate,
            "seconds": folder.seconds,
        }
    epochs = ceil(STEPS / ceil(found["num_train"] / config.batch_size))
    return {**found, "epochs": config.epochs or min(max(epochs, 5), 60)}
