"""The settings. Each is an option of `kerasdist fit`. Do not import TensorFlow in this file."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import ceil

import kerasdist

# What is drawn without --data-dir, to try the recipe.
DRAWN_CLASSES = ("bar", "disc", "ring")
NUM_DRAWN = {"train": 600, "validation": 200}
# About how many steps a training should have, if its number of epochs is not given.
STEPS = 400
# If a run is trained again with other values of these, all is learnt from the data anew.
LEARN_ANEW = ("image_size", "backbone")
# With other values of these, the classes of the run stay, and its data is counted again.
LEARN_KEEPING = ("data_dir", "validation_split", "split_seed", "skip_bad", "freeze", "epochs")


@dataclass(frozen=True)
class Config(kerasdist.OptimizerConfig):
    """The settings of the recipe, with defaults and help texts."""

    image_size: int | None = field(
        default=None, metadata={"help": "images are resized to this side", "from_data": True}
    )
    backbone: str | None = field(
        default=None,
        metadata={"help": "network of keras.applications to start from: mobilenet_v3_small, ..."},
    )
    weights: str | None = field(
        default=None,
        metadata={
            "help": "weights of the backbone: imagenet, or a .keras or .weights.h5 file of it or "
            "of a model with it, or a run"
        },
    )
    init_from: str | None = None
    freeze: int | str | None = field(
        default=None,
        metadata={
            "help": "train only the last layer for this many epochs, then all at a lower rate; "
            "without a number, train only the last layer",
            "without_value": "all",
        },
    )
    unfreeze_rate: float = field(
        default=0.1, metadata={"help": "after freeze: this times the learning rate"}
    )
    lora: int | None = field(
        default=None,
        metadata={"help": "rank of matrices to train beside the backbone's kernels, which rest"},
    )
    width: int = field(
        default=16, metadata={"help": "filters of the first convolution, without a backbone"}
    )
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
    split: dict = field(default_factory=dict, metadata={"learnt": True})

    def __post_init__(self) -> None:
        """Checks the settings. If a run is trained again, another --image-size counts."""
        super().__post_init__()
        if self.shape and self.image_size is not None:
            object.__setattr__(self, "shape", (self.image_size, self.image_size))
        for name in ("weights", "freeze", "lora"):
            value = getattr(self, name)
            if value is not None and self.backbone is None:
                raise kerasdist.KerasdistError(
                    f"Received `{name}={value!r}` without a backbone. Expected both. Name one with "
                    "`--backbone`, for example mobilenet_v3_small."
                )
        is_number = isinstance(self.freeze, int) and self.freeze >= 1
        if not (is_number or self.freeze in (None, "all")) or isinstance(self.freeze, bool):
            raise kerasdist.KerasdistError(
                f"Received `freeze={self.freeze!r}`. Expected a number of epochs of at least 1, or "
                "nothing to keep the backbone frozen. Give for example `--freeze 3`."
            )
        for name in ("freeze", "lora"):
            value = getattr(self, name)
            if value is not None and not self.is_trained:
                raise kerasdist.KerasdistError(
                    f"Received `{name}={value!r}` without weights: the backbone would keep random "
                    "weights. Expected trained ones. Give `--weights`, a file or imagenet."
                )
        if self.lora is not None and (self.lora < 1 or self.freeze is not None):
            raise kerasdist.KerasdistError(
                f"Received `lora={self.lora!r}` and `freeze={self.freeze!r}`. Expected a rank of "
                "at least 1, and no `freeze`: with LoRA the backbone's own weights rest. Give "
                "only one of them."
            )
        if not 0 < self.unfreeze_rate <= 1:
            raise kerasdist.KerasdistError(
                f"Received `unfreeze_rate={self.unfreeze_rate!r}`. Expected a number above 0 and "
                "up to 1. Give for example `--unfreeze-rate 0.1`."
            )

    @property
    def is_trained(self) -> bool:
        """Whether the backbone starts from trained weights."""
        return self.weights is not None or self.init_from is not None


def open_folder(config) -> kerasdist.ImageFolder:
    """The images in --data-dir."""
    return kerasdist.ImageFolder(
        config.data_dir,
        image_size=config.shape or config.image_size,
        class_names=config.class_names or None,
        validation_split=config.validation_split,
        seed=config.split_seed,
        skip_bad=config.skip_bad,
        split=config.split,
    )


def learn(config) -> dict:
    """The settings that come from the data."""
    if config.backbone is not None:  # Its own image size, unless another one was chosen.
        side = kerasdist.backbone_size(config.backbone, config.image_size)
        config = replace(config, image_size=side)
    if config.data_dir is None:
        side = config.image_size or 32
        found = {"class_names": DRAWN_CLASSES, "shape": (side, side), "skipped": (), "split": {}}
        num_train, flips = NUM_DRAWN["train"], True
    else:
        folder = open_folder(config)
        found = {
            "class_names": folder.class_names,
            "shape": folder.image_size,
            "skipped": tuple(folder.skipped),
            "split": folder.split,
        }
        num_train, flips = len(folder.train), folder.flips
    epochs = ceil(STEPS / ceil(num_train / config.batch_size))
    epochs = config.epochs or min(max(epochs, 5), 60)
    if isinstance(config.freeze, int) and config.freeze >= epochs:
        raise kerasdist.KerasdistError(
            f"Received `freeze={config.freeze}` for {epochs} epochs: nothing would be unfrozen. "
            "Expected fewer epochs than are trained. Give more `--epochs`, or `--freeze` without a "
            "number."
        )
    return {
        **found,
        "num_train": num_train,
        "flip": flips if config.flip is None else config.flip,
        "epochs": epochs,
    }
