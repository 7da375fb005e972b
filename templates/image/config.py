"""The settings. Each is an option of `kerasdist fit`. Do not import TensorFlow in this file."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil

import kerasdist

# What is drawn without --data-dir, to try the recipe.
DRAWN_CLASSES = ("bar", "disc", "ring")
NUM_DRAWN = {"train": 600, "validation": 200}
# About how many steps a training should have, if its number of epochs is not given.
STEPS = 400


@dataclass(frozen=True)
class Config(kerasdist.OptimizerConfig):
    """The settings of the recipe, with defaults and help texts."""

    image_size: int | None = field(
        default=None, metadata={"help": "images are resized to this side", "from_data": True}
    )
    width: int = field(default=16, metadata={"help": "filters of the first convolution"})
    dropout: float = field(default=0.2, metadata={"help": "dropout rate before the last layer"})
    augment: bool = field(
        default=True, metadata={"help": "shift, zoom and brighten training images at random"}
    )
    flip: bool | None = field(
        default=None,
        metadata={
            "help": "also swap left and right: true or false (for photos true, if no class names a "
            "side)",
            "from_data": True,
        },
    )
    batch_size: int = field(default=32, metadata={"help": "examples per step, over all devices"})
    epochs: int | None = field(
        default=None, metadata={"help": "passes over the training data", "from_data": True}
    )
    learning_rate: float = 0.003
    schedule: str = "cosine"
    data_dir: str | None = field(
        default=None, metadata={"help": "a folder with one folder of images per class"}
    )
    validation_split: float = field(
        default=0.2,
        metadata={"help": "the part for validation, if there is no folder such as val for it"},
    )
    split_seed: int = field(default=0, metadata={"help": "decides which images are that part"})
    skip_bad: bool = field(
        default=False, metadata={"help": "leave out files that cannot be used, and name them"}
    )
    # What `learn` finds in the data. A run keeps it.
    class_names: tuple[str, ...] = field(default=(), metadata={"learnt": True})
    shape: tuple[int, ...] = field(default=(), metadata={"learnt": True})
    num_train: int = field(default=0, metadata={"learnt": True})
    skipped: tuple[str, ...] = field(default=(), metadata={"learnt": True})


def open_folder(config) -> kerasdist.ImageFolder:
    """The images in --data-dir."""
    return kerasdist.ImageFolder(
        config.data_dir,
        image_size=config.shape or config.image_size,
        class_names=config.class_names or None,
        validation_split=config.validation_split,
        seed=config.split_seed,
        skip_bad=config.skip_bad,
    )


def learn(config) -> dict:
    """The settings that come from the data."""
    if config.data_dir is None:
        side = config.image_size or 32
        found = {"class_names": DRAWN_CLASSES, "shape": (side, side), "skipped": ()}
        num_train, flips = NUM_DRAWN["train"], True
    else:
        folder = open_folder(config)
        found = {
            "class_names": folder.class_names,
            "shape": folder.image_size,
            "skipped": tuple(folder.skipped),
        }
        num_train, flips = len(folder.train), folder.flips
    epochs = ceil(STEPS / ceil(num_train / config.batch_size))
    return {
        **found,
        "num_train": num_train,
        "flip": flips if config.flip is None else config.flip,
        "epochs": config.epochs or min(max(epochs, 5), 30),
    }
