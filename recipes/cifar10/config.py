"""Settings of the CIFAR-10 recipe. Does not import TensorFlow, so `--help` is quick."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kerasdist import KerasdistError, OptimizerConfig

# The settings of each preset. Other settings keep their defaults below; options override both.
PRESETS = {
    "fast": {},
    "accurate": {"widths": (64, 256, 256), "convolutions": 3, "cutout": 12, "epochs": 26},
    "tutorial": {
        "network": "tutorial",
        "augmentation": "tutorial",
        "batch_size": 128,
        "epochs": 256,
        "optimizer": "sgd",
        "learning_rate": 0.1,
        "schedule": "exponential",
        "decay_steps": 136_718,  # 350 epochs of 50,000 images in batches of 128
        "decay_rate": 0.1,
        "staircase": True,
        "ema": 0.9999,
        "label_smoothing": 0.0,
        "momentum": None,
        "weight_decay": None,
    },
}


@dataclass(frozen=True)
class Config(OptimizerConfig):
    """The settings of the recipe. Each is an option of `kerasdist fit recipes/cifar10`.

    Example:
        >>> Config(learning_rate=0.01).learning_rate
        0.01
    """

    preset: Literal["fast", "accurate", "tutorial"] = field(
        default="fast",
        metadata={"help": "settings to start from: fast, accurate or tutorial (as in 2017)"},
    )
    network: Literal["whitened", "tutorial"] = field(
        default="whitened", metadata={"help": "whitened (groups of convolutions) or tutorial"}
    )
    widths: tuple[int, ...] = field(
        default=(32, 88, 144), metadata={"help": "whitened: filters per group"}
    )
    convolutions: int = field(
        default=2,
        metadata={
            "help": "whitened: convolutions per group; from 3 on, all but the first are a residual"
        },
    )
    augmentation: Literal["shift", "tutorial", "none"] = field(
        default="shift",
        metadata={
            "help": "shift (by up to 2 pixels, and flip each image in every other epoch), "
            "tutorial (random crop, flip, brightness, contrast) or none"
        },
    )
    cutout: int = field(
        default=0,
        metadata={"help": "shift: side of the square that is painted over in each image, or 0"},
    )
    crop_size: int = field(
        default=24,
        metadata={"help": "tutorial: side of the crop that the network sees, at most 32"},
    )
    l2: float = field(
        default=0.002,
        metadata={"help": "tutorial: L2 factor on its two hidden dense layers"},
    )
    label_smoothing: float = field(
        default=0.2, metadata={"help": "part of a label that is spread equally over all classes"}
    )
    others_rate: float = field(
        default=12.5,
        metadata={"help": "kernel_muon: factor of the learning rate for all but convolutions"},
    )
    bias_factor: float = field(
        default=64.0,
        metadata={"help": "whitened: factor of the learning rate for BatchNorm biases"},
    )
    batch_size: int = field(default=512, metadata={"help": "examples per step, over all devices"})
    epochs: int = field(default=10, metadata={"help": "passes over the training data"})
    steps: int | None = field(
        default=None, metadata={"help": "number of steps to train, instead of epochs"}
    )
    ema: float | None = field(
        default=None, metadata={"help": "decay of the average of the weights, for evaluation"}
    )
    optimizer: str = "kernel_muon"
    learning_rate: float = 0.06
    schedule: str = "onecycle"
    peak_at: float = 0.05
    start_factor: float | None = 0.2
    end_factor: float = 0.0
    momentum: float | None = 0.7
    weight_decay: float | None = 0.11
    weight_decay_on: str = "logits/kernel"
    data_dir: str | None = field(
        default=None,
        metadata={"help": "folder with cifar-10-batches-bin or a prepared TFDS folder"},
    )
    source: Literal["auto", "files", "tfds", "synthetic"] = field(
        default="auto",
        metadata={"help": "auto, files, tfds or synthetic; auto uses the first available"},
    )
    seed: int = field(default=0, metadata={"help": "seed of the initial weights and the shuffling"})
    num_train: int = field(
        default=5000, metadata={"help": "number of training images (synthetic data only)"}
    )
    num_validation: int = field(
        default=2000,
        metadata={"help": "number of validation images (synthetic data only)"},
    )
    synthetic_seed: int = field(
        default=0,
        metadata={"help": "seed of the synthetic images; --seed does not change them"},
    )

    def __post_init__(self):
        """Checks the ranges of numbers, before TensorFlow is imported."""
        super().__post_init__()
        for name, lowest, highest in (
            ("crop_size", 1, 32),
            ("cutout", 0, 32),
            ("convolutions", 1, None),
            ("num_train", 1, None),
            ("num_validation", 1, None),
            ("label_smoothing", 0, 1),
        ):
            value = getattr(self, name)
            if value < lowest or (highest is not None and value > highest):
                expected = f"at least {lowest}" if highest is None else f"{lowest} to {highest}"
                raise KerasdistError(
                    f"Received `{name}={value!r}`. Expected {expected}. Correct the setting."
                )
        if not 1 <= len(self.widths) <= 4 or min(self.widths) < 1:
            raise KerasdistError(
                f"Received `widths={self.widths!r}`. Expected one to four numbers of at least 1, "
                "because each group halves the image. Correct the setting."
            )
