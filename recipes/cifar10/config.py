"""Settings of the CIFAR-10 recipe. Imports no TensorFlow, so that `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Config:
    """Every setting of the recipe; each is an option of `kerasdist fit recipes/cifar10`.

    Example:
        >>> Config(learning_rate=0.01).learning_rate
        0.01
    """

    batch_size: int = field(
        default=128, metadata={"help": "examples of one optimizer step, over all devices"}
    )
    epochs: int = field(default=5, metadata={"help": "passes over the training data"})
    optimizer: Literal["adam", "momentum", "sgd"] = field(
        default="adam",
        metadata={"help": "adam, momentum (SGD with Nesterov momentum 0.9) or sgd"},
    )
    learning_rate: float = field(default=0.001, metadata={"help": "step size of the optimizer"})
    weight_decay: float = field(
        default=0.002,
        metadata={"help": "L2 factor on the 384 and 192 unit layers (the tutorial's 0.004 / 2)"},
    )
    crop_size: int = field(
        default=24, metadata={"help": "side of the central crop that the network sees, at most 32"}
    )
    data_dir: str | None = field(
        default=None,
        metadata={"help": "folder with cifar-10-batches-bin or a prepared TFDS folder"},
    )
    source: Literal["auto", "files", "tfds", "synthetic"] = field(
        default="auto",
        metadata={"help": "auto, files, tfds or synthetic; auto takes the first there is"},
    )
    seed: int = field(default=0, metadata={"help": "seed of the initial weights and the shuffling"})
    num_train: int = field(
        default=6500, metadata={"help": "training images of the synthetic set; others have theirs"}
    )
    num_validation: int = field(
        default=2000,
        metadata={"help": "validation images of the synthetic set; others have theirs"},
    )
    synthetic_seed: int = field(
        default=0,
        metadata={"help": "seed of the synthetic images, apart from seed so that runs compare"},
    )

    def __post_init__(self):
        """Refuses numbers out of range, before TensorFlow is imported."""
        for name, lowest, highest in (
            ("crop_size", 1, 32),
            ("num_train", 1, None),
            ("num_validation", 1, None),
        ):
            value = getattr(self, name)
            if value < lowest or (highest is not None and value > highest):
                from kerasdist import KerasdistError

                expected = f"at least {lowest}" if highest is None else f"{lowest} to {highest}"
                raise KerasdistError(
                    f"Received `{name}={value!r}`. Expected {expected}. Correct the setting."
                )
