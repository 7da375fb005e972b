"""The settings. Each is an option of `kerasdist fit`. Do not import TensorFlow in this file."""

from __future__ import annotations

from dataclasses import dataclass, field

import kerasdist


@dataclass(frozen=True)
class Config(kerasdist.OptimizerConfig):
    """The settings of the recipe, with defaults and help texts."""

    image_size: int = field(default=32, metadata={"help": "images are resized to this side"})
    width: int = field(default=16, metadata={"help": "filters of the first convolution"})
    batch_size: int = field(default=32, metadata={"help": "examples per step, over all devices"})
    epochs: int = field(default=5, metadata={"help": "passes over the training data"})
    learning_rate: float = 0.003
    schedule: str = "cosine"
    data_dir: str | None = field(
        default=None, metadata={"help": "a folder with one folder of images per class"}
    )
