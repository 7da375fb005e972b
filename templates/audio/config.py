"""Settings. Each is an option of `kerasdist fit`; this file imports no TensorFlow."""

from __future__ import annotations

from dataclasses import dataclass, field

import kerasdist


@dataclass(frozen=True)
class Config(kerasdist.OptimizerConfig):
    """Every setting of the recipe, its default and its meaning."""

    rate: int = field(default=16000, metadata={"help": "samples a second that files must have"})
    mels: int = field(default=40, metadata={"help": "bands of the mel scale"})
    units: int = field(default=32, metadata={"help": "units of the recurrent layer, each way"})
    batch_size: int = field(default=32, metadata={"help": "examples of a step, over all devices"})
    epochs: int = field(default=5, metadata={"help": "passes over the training data"})
    learning_rate: float = 0.003
    schedule: str = "cosine"
    data_dir: str | None = field(
        default=None, metadata={"help": "a folder with a folder of WAV files for each class"}
    )
