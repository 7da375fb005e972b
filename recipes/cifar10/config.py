"""Settings of the CIFAR-10 recipe. Imports no TensorFlow, so that `--help` answers at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from kerasdist import KerasdistError, OptimizerConfig

# What each preset sets; anything else keeps its default below, and any option overrides both.
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
    """Every setting of the recipe; each is an option of `kerasdist fit recipes/cifar10`.

    Example:
        >>> Config(learning_rate=0.01).learning_rate
        0.01
    """

    preset: Literal["fast", "accurate", "tutorial"] = field(
        default="fast",
        metadata={"help": "settings to begin with: fast, accurate or tutorial (as in 2017)"},
    )
    network: Literal["whitened", "tutorial"] = field(
        default="whitened", metadata={"help": "whitened (groups of convolutions) or tutorial"}
    )
    widths: tuple[int, ...] = field(
        default=(32, 88, 144), metadata={"help": "whitened: filters of each group"}
    )
    convolutions: int = field(
        default=2,
        metadata={
            "help": "whitened: convolutions of a group; of 3 or more, the rest is a residual"
        },
    )
    augmentation: Literal["shift", "tutorial", "none"] = field(
        default="shift",
        metadata={
            "help": "shift (by up to 2 pixels, and every image flipped in every other epoch), "
            "tutorial (random crop, flip, brightness, contrast) or none"
        },
    )
    cutout: int = field(
        default=0,
        metadata={"help": "shift: side of a square of each image that is painted over, or 0"},
    )
    crop_size: int = field(
        default=24, metadata={"help": "tutorial: side of what the network sees, at most 32"}
    )
    l2: float = field(
        default=0.002,
        metadata={"help": "tutorial: L2 factor on its two hidden dense layers"},
    )
    label_smoothing: float = field(
        default=0.2, metadata={"help": "part of a label that goes to all classes equally"}
    )
    others_rate: float = field(
        default=12.5,
        metadata={"help": "kernel_muon: learning rate of all but the convolutions, times this"},
    )
    bias_factor: float = field(
        default=64.0, metadata={"help": "whitened: learning rate of BatchNorm's biases, times this"}
    )
    batch_size: int = field(
        default=512, metadata={"help": "examples of one optimizer step, over all devices"}
    )
    epochs: int = field(default=10, metadata={"help": "passes over the training data"})
    steps: int | None = field(
        default=None, metadata={"help": "steps to train instead of epochs; the schedule knows them"}
    )
    ema: float | None = field(
        default=None, metadata={"help": "decay of an average of the weights, for evaluation"}
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
        metadata={"help": "auto, files, tfds or synthetic; auto takes the first there is"},
    )
    seed: int = field(default=0, metadata={"help": "seed of the initial weights and the shuffling"})
    num_train: int = field(
        default=5000, metadata={"help": "training images of the synthetic set; others have theirs"}
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
                f"Received `widths={self.widths!r}`. Expected one to four numbers of at least 1: "
                "each group halves the image. Correct the setting."
            )
