"""Settings. Each is an option of `kerasdist fit`; this file imports no TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass, field

import kerasdist


@dataclass(frozen=True)
class Config(kerasdist.OptimizerConfig):
    """Every setting of the recipe, its default and its meaning."""

    image_size: int = field(default=32, metadata={"help": "side that images are resized to"})
    width: int = field(default=16, metadata={"help": "filters of the first convolution"})
    batch_size: int = field(default=32, metadata={"help": "examples of a step, over all devices"})
    epochs: int = field(default=5, metadata={"help": "passes over the training data"})
    learning_rate: float = 0.003
    schedule: str = "cosine"
    data_dir: str | None = field(
        default=None, metadata={"help": "a folder with a folder of images for each class"}
    )
